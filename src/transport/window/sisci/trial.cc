#include "transport/window/sisci/trial.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace ropewalk::transport::window::sisci {
namespace {

std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  return mixed ^ mixed >> 31;
}

}  // namespace

void fill_pattern(std::span<std::byte> page, std::uint64_t seed, unsigned source) {
  std::uint64_t state = seed + source;
  for (std::size_t at = 0; at + sizeof state <= page.size(); at += sizeof state) {
    const std::uint64_t word = next(state);
    std::memcpy(page.data() + at, &word, sizeof word);
  }
}

bool is_pattern(std::span<const std::byte> page, std::uint64_t seed, unsigned source) {
  std::uint64_t state = seed + source;
  for (std::size_t at = 0; at + sizeof state <= page.size(); at += sizeof state) {
    const std::uint64_t word = next(state);
    if (std::memcmp(page.data() + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

Trial::Trial(Regions& regions, std::size_t timed_bytes) : bytes_(kTimedOffset + timed_bytes) {
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) throw system_error(errno, "mmap of memory for a trial");
  data_ = static_cast<std::byte*>(mapped);
  try {
    registration_ = regions.add(data_, bytes_, MemoryKind::kHost);
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
}

Trial::~Trial() {
  registration_.reset();
  munmap(data_, bytes_);
}

std::span<std::byte> Trial::timed() const { return std::span(data_, bytes_).subspan(kTimedOffset); }

std::span<std::byte> Trial::page(unsigned source) const {
  return {data_ + (source == kFromRegistered ? 0 : kTrialPage), kTrialPage};
}

const Region* Trial::region() const {
  return static_cast<const SisciRegistration&>(*registration_).region().get();
}

}  // namespace ropewalk::transport::window::sisci
