// Lists of processors, as Linux writes them, and threads that stay on some.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace ropewalk {

/// "0-3,8" as 0, 1, 2, 3, 8. @throws Error kInvalidArgument for what is no such list
std::vector<int> parse_cpu_list(std::string_view text);

/// The processors nearest to a PCI device ("0000:3b:00.0", in either case), as the kernel says
/// (local_cpulist of sysfs). Empty where it says nothing.
std::vector<int> cpus_near(std::string_view pci_address,
                           const std::filesystem::path& devices = "/sys/bus/pci/devices");

/// Those that the calling thread may run on; empty where the system does not say.
std::vector<int> usable_cpus();

/// Those of `first` that are in all of `others`, too; one of these that would leave none is passed
/// over.
std::vector<int> cpus_also_in(std::vector<int> first, std::span<const std::vector<int>> others);

/// From now on the calling thread runs on those of `cpus` that it may use.
/// @return false, and nothing has changed, when there are none, or the system refuses
bool stay_on(const std::vector<int>& cpus) noexcept;

}  // namespace ropewalk
