#include "faults.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>

namespace broken {
namespace {

const std::set<std::string, std::less<>>& chosen() {
  static const auto names = [] {
    const char* value = std::getenv("RW_BROKEN_PLUGIN");
    std::istringstream list(value == nullptr ? "" : value);
    std::set<std::string, std::less<>> found;
    for (std::string name; std::getline(list, name, ',');) found.insert(name);
    return found;
  }();
  return names;
}

}  // namespace

bool fault(std::string_view name) { return chosen().contains(name); }

void enter(std::string_view call) {
  for (const std::string_view name : chosen()) {
    const std::size_t dash = name.find('-');
    if (dash == std::string_view::npos || name.substr(dash + 1) != call) continue;
    const std::string_view what = name.substr(0, dash);
    if (what == "crash") raise(SIGSEGV);
    if (what == "kill") raise(SIGKILL);
    if (what == "exit") std::exit(3);
    while (what == "hang") pause();
  }
}

}  // namespace broken
