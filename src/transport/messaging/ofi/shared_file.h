// The file of an endpoint of libfabric's provider shm in /dev/shm, 16 MiB. libfabric 1.17 removes
// it when the endpoint is closed or a signal such as SIGTERM ends the process, but not when the
// process exits with an endpoint that is open, as with NCCL's versions that never finalize a
// plugin.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/file_descriptor.h"

namespace ropewalk::transport::ofi {

/// Of one open endpoint. Removes the file if the process exits while this lives; one that is left
/// all the same, by _exit() or SIGKILL, is removed by remove_abandoned_files() of any process of
/// the same user. Threads: any.
class SharedFile {
 public:
  /// Of none.
  SharedFile() = default;
  /// @param address  the endpoint's own, as fi_getname() gives it: "fi_shm://1234:0:0"
  explicit SharedFile(std::span<const std::byte> address);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept = default;
  SharedFile& operator=(SharedFile&& other) noexcept;

 private:
  void forget() noexcept;

  std::string path_;  // empty: none
  FileDescriptor file_;
};

/// @return how many
int remove_abandoned_files();

}  // namespace ropewalk::transport::ofi
