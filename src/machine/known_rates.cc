#include "machine/known_rates.h"

namespace ropewalk::machine {

std::vector<double> KnownRates::get(const std::string& nics) {
  const Lock lock(mutex_);
  const auto found = rates_.find(nics);
  return found == rates_.end() ? std::vector<double>() : found->second;
}

void KnownRates::keep(const std::string& nics, const std::vector<double>& rates) {
  const Lock lock(mutex_);
  rates_[nics] = rates;
}

}  // namespace ropewalk::machine
