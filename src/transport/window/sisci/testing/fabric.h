// A fabric of software PCIe bridges for tests (tests/sisci): for this process and the children that
// it forks later.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace ropewalk::transport {

/// Makes a folder with a settings file, to which the environment points while this lives.
class SoftwareFabric {
 public:
  explicit SoftwareFabric(const std::string& settings = "") {
    std::string pattern = (std::filesystem::temp_directory_path() / "rw-sisci-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    write(settings);
    if (const char* before = std::getenv(kVariable)) before_ = before;
    setenv(kVariable, file().c_str(), 1);
  }
  ~SoftwareFabric() {
    if (before_) {
      setenv(kVariable, before_->c_str(), 1);  // of a fabric that lives longer
    } else {
      unsetenv(kVariable);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  SoftwareFabric(const SoftwareFabric&) = delete;
  SoftwareFabric& operator=(const SoftwareFabric&) = delete;

  /// New settings. Processes that run see them within some 10 ms.
  void write(const std::string& settings) const {
    // By a rename, so that nobody reads half of it.
    std::ofstream(folder_ / "new") << settings << "# the rest is as it is by default\n";
    std::filesystem::rename(folder_ / "new", file());
  }
  [[nodiscard]] std::string file() const { return (folder_ / "sisci.conf").string(); }
  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  static constexpr const char* kVariable = "SOFTWARE_SISCI_SETTINGS";
  std::filesystem::path folder_;
  std::optional<std::string> before_;
};

}  // namespace ropewalk::transport
