#include "diagnose/repeated_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace ropewalk::diagnose {
namespace {

[[noreturn]] void fail(std::size_t bytes) {
  throw Error(Errc::kSystem, "mapping {} bytes of repeated memory: mmap: {}", bytes,
              std::strerror(errno));
}

}  // namespace

RepeatedMemory::RepeatedMemory(std::size_t bytes, std::size_t period)
    : period_(SharedMemory::create(period, ShmBacking::kAuto)), bytes_(bytes) {
  RW_ASSERT(period > 0 && period % kGranularity == 0 && bytes % period == 0);
  period_.reserve(0, period);
  void* whole = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) fail(bytes);
  data_ = static_cast<std::byte*>(whole);
  for (std::size_t offset = 0; offset < bytes; offset += period) {
    if (mmap(data_ + offset, period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, period_.fd(),
             0) == MAP_FAILED) {
      const int error = errno;
      munmap(data_, bytes);
      errno = error;
      fail(bytes);
    }
  }
}

RepeatedMemory::~RepeatedMemory() { munmap(data_, bytes_); }

}  // namespace ropewalk::diagnose
