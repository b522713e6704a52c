// Whether memory is a GPU's.
#pragma once

namespace ropewalk::mp {

/// Asks CUDA's driver, which this process has loaded when it works with a GPU. Without a driver, or
/// for memory that it does not know: false.
bool is_on_gpu(const void* address);

}  // namespace ropewalk::mp
