#include "check_plugin/rules.h"

#include <vector>

namespace ropewalk::check_plugin {

std::span<const Rule> rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> joined;
    for (const std::span<const Rule> part :
         {loading_rules(), connecting_rules(), life_cycle_rules(), transfer_rules(),
          registration_rules(), ordering_rules(), thread_rules(), closing_rules(), gpu_rules(),
          program_rules()}) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }();
  return all;
}

}  // namespace ropewalk::check_plugin
