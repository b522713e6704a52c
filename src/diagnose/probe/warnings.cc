#include "diagnose/probe/warnings.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/log.h"
#include "core/mutex.h"

namespace ropewalk::diagnose::probe {
namespace {

// Of the process, as the log is.
struct Heard {
  Mutex mutex;
  std::vector<std::string> texts RW_GUARDED_BY(mutex);
};

Heard& heard() {
  static auto* const one = new Heard;  // threads may warn while the process ends
  return *one;
}

void hear(log::Level /*level*/, std::uint32_t /*subsystem*/, const char* text) {
  const Lock lock(heard().mutex);
  std::vector<std::string>& texts = heard().texts;
  if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.emplace_back(text);
}

}  // namespace

HeardWarnings::HeardWarnings() {
  {
    const Lock lock(heard().mutex);
    heard().texts.clear();
  }
  log::set_listener(hear);
}

HeardWarnings::~HeardWarnings() { log::set_listener(nullptr); }

std::string HeardWarnings::text() const {
  const Lock lock(heard().mutex);
  std::string all;
  for (const std::string& text : heard().texts) all += (all.empty() ? "" : "; ") + text;
  return all;
}

}  // namespace ropewalk::diagnose::probe
