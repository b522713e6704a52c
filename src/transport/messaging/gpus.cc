#include "transport/messaging/gpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "transport/messaging/verification.h"

namespace ropewalk::transport::messaging {

FoundCuda find_cuda(const Config& config) {
  FoundCuda found;
  try {
    found.cuda = std::make_shared<window::DriverCuda>(config.text(Setting::kCudaLibrary),
                                                      config.duration(Setting::kTimeout));
  } catch (const Error& error) {
    found.why_not = error.what();
    return found;
  }
  const bool sums = verify_of(config.text(Setting::kVerify)) == Verify::kAll;
  if (sums && found.cuda->cuda.loads_lazily()) {
    found.cuda.reset();
    found.why_not = fmt::format("VERIFY=all: {}", window::kWhyNotLazily);
  }
  return found;
}

std::uint64_t gpu_checksum(window::Gpu& gpu, const void* data, std::size_t bytes) {
  std::vector<std::byte> copy(bytes);
  gpu.fetch(copy.data(), reinterpret_cast<window::CuPointer>(data), bytes);
  return wire_checksum(copy.data(), bytes);
}

GpuTrials try_each_gpu(window::DriverCuda& driver,
                       const std::function<std::string(window::Gpu&)>& try_one) {
  GpuTrials trials{true, true, {}};
  for (int ordinal = 0; ordinal < driver.gpus.count(); ++ordinal) {
    std::string words;
    try {
      window::Gpu& gpu = driver.gpus.at(ordinal);
      words = fmt::format("{}: {}", gpu.name(), try_one(gpu));
    } catch (const Error& error) {
      words = fmt::format("GPU {}: {}", ordinal, error.what());
      trials.right = false;
    }
    trials.words += (ordinal == 0 ? "" : "; ") + words;
  }
  return trials;
}

TrialMemory::TrialMemory(window::Gpu& gpu, std::size_t longest)
    : gpu_(gpu),
      buffer_(gpu, kGpuBytes, window::DeviceBuffer::From::kAllocator),
      host_(2 * longest) {}

void TrialMemory::draw(std::size_t bytes) {
  std::uint64_t seed = 0;
  fill_random(std::as_writable_bytes(std::span(&seed, 1)));
  pattern_.resize(bytes);
  fill_pattern(pattern_, seed);
}

void TrialMemory::draw_on_host(std::size_t bytes) {
  draw(bytes);
  std::copy(pattern_.begin(), pattern_.end(), host_.begin());
}

void TrialMemory::draw_on_gpu(std::size_t bytes) {
  draw(bytes);
  gpu_.fill(buffer_.data(), pattern_.data(), bytes);
}

bool TrialMemory::is_seen() const {
  return std::equal(pattern_.begin(), pattern_.end(), host_.data() + host_.size() / 2);
}

bool TrialMemory::is_on_gpu(std::size_t offset) {
  std::vector<std::byte> fetched(pattern_.size());
  gpu_.fetch(fetched.data(), buffer_.data() + offset, fetched.size());
  return fetched == pattern_;
}

}  // namespace ropewalk::transport::messaging
