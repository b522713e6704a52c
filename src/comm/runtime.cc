#include "comm/runtime.h"

#include <span>

#include "core/log.h"
#include "core/random.h"

namespace ropewalk::comm {

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
    log::configure(loaded->text(Setting::kDebug), loaded->text(Setting::kDebugSubsys),
                   loaded->text(Setting::kDebugFile));
    config_ = std::move(loaded);
  }
  return *config_;
}

void Runtime::set(std::string_view name, std::string_view value, std::string_view source) {
  Config changed = config();
  changed.set(name, value, source);
  log::configure(changed.text(Setting::kDebug), changed.text(Setting::kDebugSubsys),
                 changed.text(Setting::kDebugFile));
  const Lock lock(config_mutex_);
  *config_ = std::move(changed);
}

}  // namespace ropewalk::comm
