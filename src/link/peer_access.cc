#include "link/peer_access.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace ropewalk::link {

std::vector<RankPair> parse_rank_pairs(std::string_view setting, std::string_view text) {
  std::vector<RankPair> pairs;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    int a = -1;
    int b = -1;
    const char* const end = item.data() + item.size();
    const auto first = std::from_chars(item.data(), end, a);
    const bool joined = first.ec == std::errc() && first.ptr != end && *first.ptr == '-';
    const auto second = joined ? std::from_chars(first.ptr + 1, end, b) : first;
    if (!joined || second.ec != std::errc() || second.ptr != end || a < 0 || b < 0 || a == b) {
      throw Error(Errc::kInvalidArgument,
                  "setting ROPEWALK_{}: \"{}\" is no pair of ranks such as 0-3", setting, item);
    }
    pairs.emplace_back(std::minmax(a, b));
  }
  return pairs;
}

PeerAccess::PeerAccess(std::span<const View> views, std::vector<int> host_of_rank) {
  num_ranks_ = 0;
  while (num_ranks_ * num_ranks_ < views.size()) ++num_ranks_;
  RW_ASSERT(num_ranks_ * num_ranks_ == views.size());
  RW_ASSERT(host_of_rank.empty() || host_of_rank.size() == num_ranks_);
  between_.assign(views.size(), false);
  for (std::size_t a = 0; a < num_ranks_; ++a) {
    between_[a * num_ranks_ + a] = true;
    for (std::size_t b = a + 1; b < num_ranks_; ++b) {
      if (!host_of_rank.empty() && host_of_rank[a] != host_of_rank[b]) continue;
      const View& there = views[a * num_ranks_ + b];
      const View& back = views[b * num_ranks_ + a];
      if (there.has_access == 0 || back.has_access == 0) {
        missing_.emplace_back(static_cast<int>(a), static_cast<int>(b));
        continue;
      }
      between_[a * num_ranks_ + b] = between_[b * num_ranks_ + a] = true;
      any_ = true;
      whole_lines_ = whole_lines_ && there.whole_lines != 0 && back.whole_lines != 0;
    }
  }
}

}  // namespace ropewalk::link
