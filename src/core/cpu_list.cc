#include "core/cpu_list.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.h"

namespace ropewalk {

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    int first = -1;
    const char* const end = item.data() + item.size();
    auto read = std::from_chars(item.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    const bool right = read.ec == std::errc() && read.ptr == end && first >= 0 && last >= first &&
                       last < CPU_SETSIZE;
    if (!right) throw Error(Errc::kInvalidArgument, "\"{}\" is no list of processors", item);
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> cpus_near(std::string_view pci_address, const std::filesystem::path& devices) {
  std::string address(pci_address);
  std::ranges::transform(address, address.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(devices / address / "local_cpulist");
  std::string line;
  if (!std::getline(file, line)) return {};
  try {
    return parse_cpu_list(line);
  } catch (const Error&) {
    return {};
  }
}

std::vector<int> usable_cpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> cpus_also_in(std::vector<int> first, std::span<const std::vector<int>> others) {
  for (const std::vector<int>& other : others) {
    std::vector<int> both;
    std::ranges::copy_if(first, std::back_inserter(both),
                         [&](int cpu) { return std::ranges::find(other, cpu) != other.end(); });
    if (!both.empty()) first = std::move(both);
  }
  return first;
}

bool stay_on(const std::vector<int>& cpus) noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (const int cpu : cpus) {
    const auto number = static_cast<std::size_t>(cpu);
    if (number < CPU_SETSIZE && CPU_ISSET(number, &allowed)) CPU_SET(number, &chosen);
  }
  return CPU_COUNT(&chosen) > 0 && sched_setaffinity(0, sizeof chosen, &chosen) == 0;
}

}  // namespace ropewalk
