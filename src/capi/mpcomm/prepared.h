// The sets of descriptors for kernels that the COMM layer gives.
#pragma once

#include <vector>

#include "ropewalk/compat/comm.h"

namespace ropewalk::mpcomm {

/// A ring of sets in memory that kernels reach, of which one is being filled. Its calls return as
/// those of mp.h, and ENOMEM for a full set; an error changes nothing.
///
/// Threads: one at a time. Lifetime: ends before mp_finalize.
class Prepared {
 public:
  int add_ready(std::uint32_t* word, std::uint32_t value);
  [[nodiscard]] bool has_room_for_send() const;
  int add_send(mp_request_t* request);
  int add_waits(std::vector<mp_request_t>& requests);

  /// The set, and the next one is being filled. Null where memory ran out.
  comm_dev_descs_t take();

 private:
  static constexpr int kSets = 128;

  int allocate();
  comm_dev_descs& current() { return sets_[at_]; }

  comm_dev_descs* sets_ = nullptr;
  int at_ = 0;
};

}  // namespace ropewalk::mpcomm
