// The root service of one unique id: brings the ranks of one communicator together.
//
// Collects one record of each rank, sends all records to all, waits until all have linked, and
// releases all; or sends all that are there, and those that come within a while, why it failed. The
// ranks of the process that it runs in hear of a failure last: the process may end upon it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/join_protocol.h"
#include "bootstrap/listener.h"
#include "core/error.h"

namespace ropewalk::bootstrap {

/// Service thread only. Kept by the Service until it is done.
class Root {
 public:
  Root(Service& service, FileDescriptor socket, const UniqueIdParts& id,
       Service::Clock::time_point deadline);
  ~Root();
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

 private:
  enum class Stage : std::uint8_t { kGathering, kLinking, kDone, kFailed };

  struct JoiningRank {
    std::shared_ptr<Connection> connection;  // nullptr once it closed after the end
    std::optional<RankRecord> record;
    bool ready = false;
  };

  void on_joining(std::unique_ptr<Connection> connection);
  void on_message(int rank, const std::vector<std::byte>& message);
  void on_closed(int rank);
  /// Sends one connection why it cannot join, and closes it when that was read.
  void refuse(std::shared_ptr<Connection> connection, Errc code, const std::string& text);
  void fail(Errc code, const std::string& text);
  /// Of the process that this runs in.
  bool is_own(const JoiningRank& joining) const;
  /// Tells the local ranks why the join failed, once all others have read it or the deadline has
  /// passed.
  void tell_own(bool too_late);
  void send_table();
  void release();
  void on_deadline();
  void set_deadline(Service::Clock::time_point deadline);
  void finish_soon(std::chrono::milliseconds delay);
  void finish();

  Service& service_;
  Stage stage_ = Stage::kGathering;
  int size_ = 0;         // of the first rank that came
  int first_rank_ = -1;  // that one
  int num_records_ = 0;
  int num_ready_ = 0;
  std::map<int, JoiningRank> joining_;
  std::vector<std::shared_ptr<Connection>> refused_;
  std::set<int> late_;      // ranks that came after the failure
  bool own_waits_ = false;  // the local ranks have not received the failure
  Errc failure_code_ = Errc::kInternal;
  std::string failure_;
  Service::Clock::time_point started_;
  Service::Clock::time_point deadline_;
  std::optional<Service::TimerKey> timer_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace ropewalk::bootstrap
