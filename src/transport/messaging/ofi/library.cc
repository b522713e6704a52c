#include "transport/messaging/ofi/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <type_traits>

namespace ropewalk::transport::ofi {

Library::Found Library::open(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return {nullptr, fmt::format("{} was not found ({})", file,
                                 reason == nullptr ? "no reason given" : reason)};
  }
  std::shared_ptr<Library> library(new Library(handle));
  if (std::string why_not = library->load(); !why_not.empty()) {
    return {nullptr, fmt::format("{} cannot be used: {}", file, why_not)};
  }
  return {std::move(library), {}};
}

std::string Library::load() {
  std::string missing;
  const auto load_function = [&](auto& function, const char* name) {
    void* const address = dlsym(handle_, name);
    if (address == nullptr) missing = fmt::format("it has no function {}", name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
  load_function(version_, "fi_version");
  load_function(getinfo, "fi_getinfo");
  load_function(fabric, "fi_fabric");
  load_function(freeinfo_, "fi_freeinfo");
  load_function(dupinfo_, "fi_dupinfo");
  load_function(strerror_, "fi_strerror");
  if (!missing.empty()) return missing;
  if (FI_VERSION_LT(version_(), kOldest)) {
    return fmt::format("it is libfabric {}; {}.{} or later is needed", version_text(),
                       FI_MAJOR(kOldest), FI_MINOR(kOldest));
  }
  return {};
}

std::uint32_t Library::api() const noexcept {
  // 1.18 can forbid providers to call CUDA, 1.20 registers by dma-buf. Nothing later is used.
  const std::uint32_t own = version_();
  const std::uint32_t wanted = FI_VERSION(1, 20);
  return FI_VERSION_LT(own, wanted) ? own : wanted;
}

std::string Library::version_text() const {
  const std::uint32_t version = version_();
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

std::string Library::words(std::int64_t error) const {
  const int code = static_cast<int>(std::abs(error));
  const char* const text = strerror_(code);
  return fmt::format("{} ({})", text == nullptr ? "unknown error" : text, code);
}

Library::Info Library::new_info() const { return {dupinfo_(nullptr), {freeinfo_}}; }
Library::Info Library::copy(const fi_info& info) const { return {dupinfo_(&info), {freeinfo_}}; }

}  // namespace ropewalk::transport::ofi
