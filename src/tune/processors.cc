#include "tune/processors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

namespace ropewalk::tune {
namespace {

constexpr std::size_t kWordBits = 64;

}  // namespace

Processors Processors::usable() {
  Processors found;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t cpu = 0; cpu < found.bits.size() * kWordBits && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.bits[cpu / kWordBits] |= std::uint64_t{1} << cpu % kWordBits;
    }
  }
  if (found.count() == 0) found.bits[0] = 1;
  return found;
}

Processors Processors::of_list(std::string_view list) {
  Processors found;
  const std::size_t limit = found.bits.size() * kWordBits;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    std::size_t first = 0;
    auto read = std::from_chars(at, end, first);
    std::size_t last = first;
    if (read.ec == std::errc() && read.ptr < end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    if (read.ec != std::errc() || last < first || (read.ptr < end && *read.ptr != ',')) return {};
    for (std::size_t cpu = first; cpu <= last && cpu < limit; ++cpu) {
      found.bits[cpu / kWordBits] |= std::uint64_t{1} << cpu % kWordBits;
    }
    if (read.ptr == end) break;
    at = read.ptr + 1;
  }
  return found;
}

int Processors::in_common(const Processors& other) const noexcept {
  int sum = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) sum += std::popcount(bits[i] & other.bits[i]);
  return sum;
}

int Processors::first() const noexcept {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] != 0) return static_cast<int>(i * kWordBits) + std::countr_zero(bits[i]);
  }
  return -1;
}

int Processors::count() const noexcept {
  int sum = 0;
  for (const std::uint64_t word : bits) sum += std::popcount(word);
  return sum;
}

bool Processors::within(const Processors& other) const noexcept {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if ((bits[i] & ~other.bits[i]) != 0) return false;
  }
  return true;
}

OnAllProcessors::OnAllProcessors() {
  known_ = sched_getaffinity(0, sizeof before_, &before_) == 0;
  if (!known_) return;
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  sched_setaffinity(0, sizeof all, &all);  // where it may not, it stays where it is
}

OnAllProcessors::~OnAllProcessors() {
  if (known_) sched_setaffinity(0, sizeof before_, &before_);
}

std::string machine_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id;
}

std::string processor_kind() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  return processor_kind(cpuinfo);
}

std::string processor_kind(std::istream& cpuinfo) {
  // x86, then Arm.
  static constexpr std::array<std::string_view, 7> kTelling = {
      "vendor_id",       "cpu family",       "model",   "stepping",
      "CPU implementer", "CPU architecture", "CPU part"};
  std::string kind;
  for (std::string line; std::getline(cpuinfo, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    if (value == std::string::npos) continue;
    if (std::find(kTelling.begin(), kTelling.end(), key) == kTelling.end()) continue;
    if (!kind.empty()) kind += '-';
    kind += std::string_view(line).substr(value);
  }
  std::replace(kind.begin(), kind.end(), '/', '-');
  return kind.empty() ? "unknown" : kind;
}

double ranks_per_processor(std::span<const Processors> each) {
  std::set<Processors> sets(each.begin(), each.end());
  Processors all;
  for (const Processors& one : sets) {
    for (std::size_t i = 0; i < all.bits.size(); ++i) all.bits[i] |= one.bits[i];
  }
  sets.insert(all);
  double most = 0;
  for (const Processors& set : sets) {
    const auto inside = std::count_if(each.begin(), each.end(),
                                      [&](const Processors& one) { return one.within(set); });
    if (set.count() > 0) most = std::max(most, static_cast<double>(inside) / set.count());
  }
  return most;
}

}  // namespace ropewalk::tune
