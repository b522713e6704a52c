// The descriptions of a communicator's hosts, as rank 0 sends them to all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::machine {

/// Texts as topology/json.h writes them; equal ones are sent once.
struct HostGraphs {
  std::string origin{};
  bool described = false;  ///< a user described a host
  std::vector<std::string> texts{};
  std::vector<std::uint32_t> text_of_host{};  ///< by host: index in `texts`

  /// For the next host.
  void add(std::string text);
  bool operator==(const HostGraphs&) const = default;
};

/// read(write(g)) == g.
std::string write(const HostGraphs& graphs);
/// @throws Error kInternal for what write() did not make
HostGraphs read_host_graphs(std::string_view bytes);

}  // namespace ropewalk::machine
