// Providers by name.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport {

/// The names that make_transport() knows in this build.
std::vector<std::string_view> compiled_providers();

/// The provider that the setting NET names.
/// @throws Error kInvalidArgument, with the names of those that there are
const Provider& chosen_provider(const Config& config);

/// The provider for processes of one host, which is always there.
const Provider& process_provider();

/// Makes the provider called `name`; with the setting FAULTY, wrapped in faulty.h, or those
/// below it are (Provider::faults_below).
/// @throws Error kInvalidArgument for an unknown name; whatever the provider throws
std::unique_ptr<Transport> make_transport(std::string_view name, const Config& config);

/// As make_transport(), without the setting FAULTY: for a provider made of others.
std::unique_ptr<Transport> make_plain_transport(std::string_view name, const Config& config);

/// Drivers of the technologies whose windows the other end's stores reach (window::Path,
/// other_window()), the best first, as far as NET allows them: that of the provider it names, or of
/// all where it leaves the choice. Empty where there is none, and where the payload would have to
/// be encrypted (NET_ENCRYPT) or is to meet faults (FAULTY).
[[nodiscard]] std::vector<std::unique_ptr<window::Driver>> make_window_drivers(
    const Config& config);

/// The settings for users that move host memory alone: transports then do not prepare for GPU
/// memory, which takes time and may change their path.
[[nodiscard]] Config for_host_memory(const Config& config);

}  // namespace ropewalk::transport
