// This host's Topology, found once and kept on disk: looking takes tens to hundreds of
// milliseconds, and a host seldom changes while it runs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "topology/discover.h"

namespace ropewalk::topology {

struct HostGraph {
  std::string text;    ///< as write_json() makes it
  std::string origin;  ///< "found", or "kept in FILE"
};

/// The fingerprint for which a cached Topology is valid: the boot, PCI devices, processors and NUMA
/// nodes, adapters with their state, the GPUs that this process may open, and this build of
/// Ropewalk. Texts of hexadecimal digits.
struct HostFingerprint {
  std::string view;   ///< of the host, and of what of it this process may use: names the file
  std::string state;  ///< all of the above: written in the file
  bool operator==(const HostFingerprint&) const = default;
};
/// Takes some tenths of a millisecond.
/// @param root has sys/, proc/ and dev/
HostFingerprint host_fingerprint(const std::filesystem::path& root = "/");

/// Where it is kept.
std::filesystem::path kept_host_file(const std::filesystem::path& folder,
                                     const HostFingerprint& fingerprint);

/// This host's Topology as cached by earlier calls, in memory and on disk.
///
/// A file counts when it is this user's alone to write, whole (its first line has length and digest
/// of the rest) and of the present fingerprint. Any other is replaced, with a line in the log. It
/// is written beside and renamed, readable by its owner only: of two jobs at once one wins, and a
/// reader sees one of the two. A folder that cannot be written is logged, no error. With one of
/// hwloc's environment variables nothing is kept: they change what is found.
///
/// Threads: any; of several at once one looks and the others wait for it.
class KeptHost {
 public:
  explicit KeptHost(DiscoverOptions options = {}) : options_(std::move(options)) {}

  /// discover(), or the cached Topology.
  /// @param folder empty: cached in memory only
  HostGraph graph(const std::filesystem::path& folder);

 private:
  struct Known {
    std::string state;
    HostGraph graph;
  };
  const DiscoverOptions options_;
  Mutex mutex_;                                               // also held while one looks
  std::map<std::string, Known> known_ RW_GUARDED_BY(mutex_);  // by file
};

}  // namespace ropewalk::topology
