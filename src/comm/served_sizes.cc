#include "comm/served_sizes.h"

#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "core/log.h"

namespace ropewalk::comm {
namespace {

constexpr unsigned kFirstBits = 4;  // 8 to 15 bytes
constexpr unsigned kLastBits = 31;

std::string text_of(std::size_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); bytes /= 1024) ++unit;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace

std::string served_sizes(tune::Tuner& tuner, Collective collective, int root, int num_ranks) {
  std::vector<std::pair<std::size_t, std::string>> from;  // the least size that each serves
  for (unsigned bits = kFirstBits; bits <= kLastBits; bits += tuner.machine() == nullptr ? 1 : 4) {
    std::string algorithm =
        tuner.priced(collective, root, std::size_t{1} << (bits - 1)).front().algorithm;
    if (from.empty() || from.back().second != algorithm) {
      from.emplace_back(std::size_t{1} << (bits - 1), std::move(algorithm));
    }
  }
  std::string text = fmt::format("{} of {} ranks: ", name(collective), num_ranks);
  for (std::size_t i = 0; i + 1 < from.size(); ++i) {
    text += fmt::format("{} below {}, ", from[i].second, text_of(from[i + 1].first));
  }
  text += from.back().second + (from.size() == 1 ? " for all sizes" : " from there on");
  return text + "; bytes in a unit";
}

void ServedSizesLog::first_call(tune::Tuner& tuner, Collective collective, int root,
                                int num_ranks) {
  const auto c = static_cast<std::size_t>(collective);
  if (told_.test(c) || !log::enabled(log::Level::kInfo, log::kInit)) return;
  told_.set(c);
  if (tuner.is_given(collective, root)) return;  // its user knows
  log::info(log::kInit, "{}", served_sizes(tuner, collective, root, num_ranks));
}

}  // namespace ropewalk::comm
