# Installation: the library, the public header, pkg-config and CMake package files.
