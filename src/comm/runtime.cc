#include "comm/runtime.h"

#include <span>

#include "comm/forced_algorithms.h"
#include "core/log.h"
#include "core/random.h"

namespace ropewalk::comm {

namespace {

// Puts into force what is for the whole process, and refuses what no communicator will take.
void apply(const Config& config) {
  (void)forced_algorithms(config.text(Setting::kAlgorithm));
  log::configure(config.text(Setting::kDebug), config.text(Setting::kDebugSubsys),
                 config.text(Setting::kDebugFile));
}

}  // namespace

Runtime::Runtime() { fill_random(std::as_writable_bytes(std::span(&token_, 1))); }

Runtime& Runtime::process() {
  // Leaked: ranks may leave while static objects are destroyed.
  static auto* runtime = new Runtime;
  return *runtime;
}

Config Runtime::config() {
  const Lock lock(config_mutex_);
  if (config_ == nullptr) {
    auto loaded = std::make_unique<Config>(Config::load());
    apply(*loaded);
    config_ = std::move(loaded);
  }
  return *config_;
}

void Runtime::set(std::string_view name, std::string_view value, std::string_view source) {
  Config changed = config();
  changed.set(name, value, source);
  apply(changed);
  const Lock lock(config_mutex_);
  *config_ = std::move(changed);
}

}  // namespace ropewalk::comm
