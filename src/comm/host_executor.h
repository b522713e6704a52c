// Runs collective calls on host memory: by the walker (executor/walker.h), in the calling thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "comm/agreed_chunks.h"
#include "comm/agreed_forms.h"
#include "comm/executor.h"
#include "comm/prepared.h"
#include "executor/host/host_team.h"
#include "executor/host/warm_buffers.h"
#include "schedule/checked.h"
#include "trace/call_records.h"

namespace ropewalk::comm {

/// A call whose strands are those of its schedule, which calls of other shapes share.
class HostCall final : public PreparedCall {
 public:
  HostCall(const CollectiveCall& call, const Extent& extent,
           std::shared_ptr<const tune::Choice> choice, PreparedCollective& collective)
      : PreparedCall(call, extent, std::move(choice)), collective_(collective) {}
  [[nodiscard]] std::vector<trace::SentBytes> sent_bytes() const override {
    return collective_.sent_bytes(shape());
  }
  [[nodiscard]] PreparedCollective& collective() const noexcept { return collective_; }
  /// Of its calls' records, and what they carry, which it may serve several kinds of.
  struct Recorded {
    CarriedType carried = CarriedType::kNone;
    trace::CallRecords::Shape shape;
  };
  [[nodiscard]] std::optional<Recorded>& recorded() noexcept { return recorded_; }
  /// Where its chunks are tuned.
  [[nodiscard]] const std::optional<ChunkRange>& chunks() const noexcept { return chunks_; }
  /// Where it tries forms; not if its chunks are tuned.
  [[nodiscard]] const std::optional<FormTrial>& trial() const noexcept { return trial_; }
  /// The call in the form that was chosen, which may be this one.
  [[nodiscard]] HostCall& as_chosen() noexcept { return chosen_ ? *chosen_ : *this; }
  /// Its run ends with a note for the next call of its shape, which HostExecutor::completed() takes
  /// up: it must be armed each time.
  [[nodiscard]] bool ends_with_note() noexcept {
    return chunks_.has_value() || as_chosen().trial().has_value();
  }

 private:
  friend class HostExecutor;

  PreparedCollective& collective_;
  std::optional<ChunkRange> chunks_;
  std::optional<FormTrial> trial_;  // in the chosen form alone
  // Its other forms, made when they are first tried, by form less one; and the way back.
  std::vector<std::unique_ptr<HostCall>> others_;
  HostCall* chosen_ = nullptr;
  AgreedForms::Shape* form_shape_ = nullptr;  // in the chosen form, since its last call
  std::optional<Recorded> recorded_;
};

class HostExecutor final : public Executor {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    int max_channels = 1;
    std::uint32_t lag_slots = 0;  ///< as PreparedCollective's
    bool check_tags = true;
    bool crowded = false;  ///< ranks share processors
    /// Largest chunk that is staged where the chunks of long calls are tuned; 0: none are tuned.
    std::size_t tuned_slot_bytes = 0;
  };
  /// @param team outlives it
  HostExecutor(executor::HostTeam& team, const Options& options)
      : team_(team),
        options_(options),
        chunks_(options.rank),
        forms_(options.rank),
        warm_(executor::WarmBuffers::cache_bytes_of_each(options.num_ranks)) {}

  std::unique_ptr<PreparedCall> prepare(const CollectiveCall& call, const Extent& extent,
                                        std::shared_ptr<const tune::Choice> choice) override;
  /// The call in the form that the next one has: it, or one that lives as long.
  /// @param prepared  prepare() made it for `call`
  HostCall& in_form(HostCall& prepared, const CollectiveCall& call);
  /// Its links must be connected, by PreparedCollective::connect().
  bool run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
           const executor::CallTag& tag, DeviceStream stream) override;
  /// The last call of these strands once more, with the same buffers, as call `number`.
  bool run_again(PreparedCollective& collective, std::uint32_t number) {
    collective.arm_again(number);
    executor::Call& call = collective.call();
    // The buffers of the last call are warm now, if they are not longer than the caches.
    if (call.cold_input || call.cold_output) [[unlikely]]
      note_buffers(call);
    team_.history().record(collective.call().tag);
    return walk(collective);
  }
  /// Goes on with the call. @return true when all strands are at their ends
  bool walk(PreparedCollective& collective) {
    if (collective.short_walk().usable()) {
      return collective.short_walk().walk(team_, collective.strands().front(), collective.call());
    }
    bool done = true;
    for (executor::Strand& strand : collective.strands()) {
      done &= executor::walk(team_, strand, collective.call());
    }
    return done;
  }
  void retire(std::unique_ptr<PreparedCall> prepared) override { prepared.reset(); }
  void forget_schedules() override;
  [[nodiscard]] int max_channels() const noexcept override { return options_.max_channels; }

  /// Sets the call's strands to its start, and notes its tag. @pre the links are connected
  /// @param prepared  in_form() gave it
  void arm(HostCall& prepared, const CollectiveCall& call, bool in_place,
           const executor::CallTag& tag);
  /// The call that was armed last is over. For every call that arm() was for.
  void completed() {
    if (tuned_.collective != nullptr) [[unlikely]]
      completed_tuned();
  }
  /// Bytes of the chunks of the call that was armed last, where they are tuned; else 0.
  [[nodiscard]] std::size_t tuned_chunk_bytes() const noexcept {
    return tuned_.chunks == nullptr ? 0 : tuned_.chunks->chunk_bytes();
  }
  /// @param prepared  prepare() made it for `call`
  [[nodiscard]] ChunkReport chunks_of(const HostCall& prepared, const CollectiveCall& call) const;
  [[nodiscard]] FormReport forms_of(const HostCall& prepared, const CollectiveCall& call) const;

 private:
  // Says which of a call's buffers no cache holds.
  void note_buffers(executor::Call& call) noexcept;
  void arm_chunks(const HostCall& prepared, const CollectiveCall& call, bool in_place,
                  const executor::CallTag& tag);
  void arm_form(HostCall& prepared, const CollectiveCall& call, bool in_place,
                const executor::CallTag& tag);
  // Null when there are too many shapes. @param chosen  has a trial
  AgreedForms::Shape* form_shape_of(HostCall& chosen, const CollectiveCall& call);
  void completed_tuned();
  PreparedCollective& collective_of(const tune::Choice& choice);
  [[nodiscard]] bool goes_by_address(const CollectiveCall& call,
                                     const PreparedCollective& collective) const;

  executor::HostTeam& team_;
  Options options_;
  AgreedChunks chunks_;
  AgreedForms forms_;
  // The call at work, where its chunks are tuned or it tries its forms.
  struct Tuned {
    AgreedChunks::Shape* chunks = nullptr;
    AgreedForms::Shape* form = nullptr;
    PreparedCollective* collective = nullptr;  // null: neither
    std::chrono::steady_clock::time_point start;
  };
  Tuned tuned_;
  executor::WarmBuffers warm_;
  Extent extent_;  // of the last call that was armed
  struct Prepared {
    std::unique_ptr<PreparedCollective> collective;
    bool given = false;  // by the user
  };
  // By schedule, which it keeps alive.
  std::map<const schedule::Checked*, Prepared> collectives_;
};

}  // namespace ropewalk::comm
