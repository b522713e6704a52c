// libfabric, found at run time: nothing here is linked with it.
//
// Objects of libfabric carry their own function tables, which its headers' inline functions call;
// only these few functions come from the library itself. Structures that the library reads whole
// (hints) are allocated by it, so that a newer library's may be longer than the headers know.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <memory>
#include <string>

namespace ropewalk::transport::ofi {

/// Threads: any. The library stays loaded for ever: providers have threads and exit handlers.
class Library {
 public:
  struct Found {
    std::shared_ptr<const Library> library;  ///< none when it cannot be used
    std::string why_not;
  };
  /// `file`: a path, or a name that the system's loader finds. Never throws for an absent or unfit
  /// library.
  static Found open(const std::string& file);

  /// The oldest that will do.
  static constexpr std::uint32_t kOldest = FI_VERSION(1, 17);
  /// Which version of the API is asked for.
  [[nodiscard]] std::uint32_t api() const noexcept;
  /// The library's own, as of FI_VERSION().
  [[nodiscard]] std::uint32_t version() const noexcept { return version_(); }
  /// "1.17"
  [[nodiscard]] std::string version_text() const;
  /// libfabric's words for an error code of either sign.
  [[nodiscard]] std::string words(std::int64_t error) const;

  struct FreeInfo {
    void (*free)(fi_info*);
    void operator()(fi_info* info) const noexcept { free(info); }
  };
  using Info = std::unique_ptr<fi_info, FreeInfo>;
  /// A zeroed fi_info with all its parts, for hints.
  [[nodiscard]] Info new_info() const;
  [[nodiscard]] Info copy(const fi_info& info) const;

  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;

 private:
  explicit Library(void* handle) noexcept : handle_(handle) {}
  std::string load();

  void* handle_;
  decltype(&::fi_freeinfo) freeinfo_ = nullptr;
  decltype(&::fi_dupinfo) dupinfo_ = nullptr;
  decltype(&::fi_version) version_ = nullptr;
  decltype(&::fi_strerror) strerror_ = nullptr;
};

}  // namespace ropewalk::transport::ofi
