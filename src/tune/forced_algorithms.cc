#include "tune/forced_algorithms.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "schedule/compile.h"
#include "tune/planned_candidates.h"

namespace ropewalk::tune {

const std::vector<std::string>& algorithm_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const schedule::Algorithm& row : schedule::algorithms()) out.emplace_back(row.name);
    out.insert(out.end(), planned_names().begin(), planned_names().end());
    return out;
  }();
  return names;
}

std::map<Collective, ForcedAlgorithm> forced_algorithms(std::string_view text) {
  std::map<Collective, ForcedAlgorithm> forced;
  const auto known = [](std::string_view algorithm) {
    const std::vector<std::string>& names = algorithm_names();
    return std::find(names.begin(), names.end(), algorithm) != names.end();
  };
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t equals = item.find('=');
    const std::string_view algorithm =
        equals == std::string_view::npos ? item : item.substr(equals + 1);
    if (algorithm == "auto") continue;
    if (!known(algorithm)) {
      throw Error(Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: unknown algorithm \"{}\"",
                  algorithm);
    }
    if (equals == std::string_view::npos) {
      for (int c = 0; c < kNumCollectives; ++c) {
        forced.emplace(static_cast<Collective>(c), ForcedAlgorithm{std::string(algorithm), false});
      }
      continue;
    }
    const std::optional<Collective> collective = parse_collective(item.substr(0, equals));
    if (!collective.has_value()) {
      throw Error(Errc::kInvalidArgument, "setting ROPEWALK_ALGORITHM: unknown operation \"{}\"",
                  item.substr(0, equals));
    }
    forced.insert_or_assign(*collective, ForcedAlgorithm{std::string(algorithm), true});
  }
  return forced;
}

}  // namespace ropewalk::tune
