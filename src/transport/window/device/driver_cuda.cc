#include "transport/window/device/driver_cuda.h"

#include "core/error.h"

namespace ropewalk::transport::window {

DriverCuda::DriverCuda(const std::string& library, std::chrono::nanoseconds limit)
    : cuda(library), gpus(cuda), copy_limit(limit) {
  if (gpus.count() == 0) throw Error(Errc::kCuda, "{}", "no CUDA: there is no GPU");
}

}  // namespace ropewalk::transport::window
