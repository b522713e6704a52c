// One rank of an ordered set of ranks that run collectives together.
//
// The steps of a call: validate (collective_call.h) -> choose and prepare, or find what was
// prepared for its shape (call_pipeline.h) -> run: on host memory by the walker (host_executor.h),
// driven by the calling thread, or by the communicator's worker thread for calls with a request; on
// a GPU by a kernel on a stream (device_group.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/failure_state.h"
#include "comm/call_agreement.h"
#include "comm/call_pipeline.h"
#include "comm/collective_call.h"
#include "comm/device_group.h"
#include "comm/host_executor.h"
#include "comm/request.h"
#include "comm/runtime.h"
#include "comm/stall.h"
#include "comm/task.h"
#include "core/fork.h"
#include "core/mutex.h"
#include "executor/host/host_team.h"
#include "executor/host/waiter.h"
#include "executor/traffic.h"
#include "link/links.h"
#include "machine/emulation.h"
#include "machine/found_hosts.h"
#include "machine/machine.h"
#include "message/messenger.h"
#include "monitor/job_ports.h"
#include "monitor/rank_summaries.h"
#include "trace/call_records.h"
#include "trace/roll_call.h"
#include "transport/transport.h"
#include "tune/choice.h"
#include "tune/group_facts.h"

namespace ropewalk::comm {

/// Threads: one at a time, except abort(), failure() and Requests, which any thread may use at any
/// time. Another one is refused (kInvalidUsage), and the communicator stays whole; of two that come
/// at the same instant both may pass, which breaks it at the end of the first to leave.
/// Operations run in the order in which they were started, blocking or not.
///
/// Processes: the one that joined. A forked child has a copy that works no more: abort() and what
/// takes a Use throw kInvalidUsage, and the copy must not be destroyed, since that waits for
/// threads that are not in the child.
class Communicator final : public executor::WaitHook {
 public:
  /// Joins; returns when all ranks have.
  /// @throws Error as Bootstrap::join, kSystem without memory
  static std::unique_ptr<Communicator> join(const bootstrap::UniqueId& id, int rank, int size,
                                            Runtime& runtime);
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// A random number that is the same on all ranks, and identifies the communicator. Public.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] Runtime& runtime() noexcept { return runtime_; }
  [[nodiscard]] const Belonging& belonging() const noexcept { return belonging_; }

  /// Ranks with equal non-negative `color` form a new communicator, by `key`, then rank. All ranks
  /// call.
  /// @return nullptr for a negative color
  std::unique_ptr<Communicator> split(int color, int key);
  /// The ranks outside `excluded` form a new communicator, in their order. They call, the others do
  /// not.
  /// @throws Error as the operations; a communicator that is broken cannot be shrunk
  std::unique_ptr<Communicator> shrink(const std::set<int>& excluded);
  /// These ranks, which keep their numbers, and new ones, which join() with `id` and a rank from
  /// size() on, form a communicator of `num_ranks`. All ranks call; one gives the id, which
  /// make_unique_id() made, the others nothing.
  /// @throws Error on all ranks, with this communicator whole: kInvalidArgument for another number
  /// of ids than one, and for numbers of ranks that differ or are no more than size()
  std::unique_ptr<Communicator> grow(const std::optional<bootstrap::UniqueId>& id, int num_ranks);

  // ---- operations -----------------------------------------------------------------------
  //
  // Errors: kInvalidArgument before anything was done (the communicator stays whole). kPeerLost,
  // kTimeout, kInvalidUsage (ranks issued different calls), kAborted, kSystem: the communicator is
  // broken; the other ranks are notified, and every later call throws the same error.

  /// Runs and returns when this rank's buffers may be used again.
  void run(const CollectiveCall& call);
  void run(const std::vector<PointToPointCall>& calls);
  /// Starts on the worker thread.
  void start(const CollectiveCall& call, std::shared_ptr<Request> request);
  void start(std::vector<PointToPointCall> calls, std::shared_ptr<Request> request);

  /// One task, validated and numbered: the pieces of run() and start(), for groups. Tasks must be
  /// run in the order in which they were made.
  std::unique_ptr<Task> make_task(const CollectiveCall& call);
  std::unique_ptr<Task> make_task(std::vector<PointToPointCall> calls);
  /// Starts a task; all `requests` end with it.
  void start(std::unique_ptr<Task> task, std::vector<std::shared_ptr<Request>> requests);
  /// Runs the tasks of several communicators, each one's in order, all at once, in this thread.
  struct Work {
    Communicator* comm = nullptr;
    std::vector<std::unique_ptr<Task>> tasks;
  };
  static void run_together(std::vector<Work> work);

  void barrier();

  // ---- on GPU memory --------------------------------------------------------------------

  /// Gives this rank the GPU `device`. All ranks call; the narrowest of their bounds apply.
  /// @throws Error as attach_device(), and as place() (machine/placement.h) on all ranks, with the
  /// communicator whole
  void attach_device(int device, BlockBounds blocks = {});
  /// nullptr before attach_device().
  [[nodiscard]] DeviceGroup* device() noexcept { return device_.get(); }
  /// Whether threads help a group to enqueue calls of this communicator (setting ENQUEUE_THREADS).
  [[nodiscard]] bool helped_by_threads() const noexcept { return helped_by_threads_; }
  /// Enqueues on `stream`; the operation runs there. Errors as above, also of earlier kernels.
  void enqueue(const CollectiveCall& call, DeviceStream stream);
  void enqueue(const std::vector<PointToPointCall>& calls, DeviceStream stream);
  /// Lets the GPUs of other processes read `bytes` at `buffer`, in the memory of this rank's GPU,
  /// where they lie. All ranks call, in the same order; sizes may differ.
  /// @param symmetric as RegisteredBuffers::add: copy engines may write it (setting COPY_ENGINES)
  /// @return a number for deregister_buffer(), from 1
  /// @throws Error kInvalidUsage without a GPU; kInvalidArgument on all ranks, naming the one whose
  /// buffer cannot be right: the communicator stays whole. Others break it
  std::uint64_t register_buffer(const void* buffer, std::size_t bytes,
                                link::MappedBuffers mapped = {}, bool symmetric = false);
  /// Local: the other ranks need not call, or not now. Does not wait: operations go on.
  /// @throws Error kInvalidArgument for a number that is not registered
  void deregister_buffer(std::uint64_t number);
  /// Breaks the communicator if a kernel of this rank ended badly. At a deadline it asks the other
  /// ranks where they are, for half a second at most. Any thread, any time.
  void look_at_device();

  // ---- windows --------------------------------------------------------------------------
  //
  // Errors: message::Refused leaves the communicator whole; others break it, as above.

  /// All ranks call, in the same order (message/messenger.h). It lives as long as this.
  /// @param device the GPU whose memory it is, as CUDA numbers them; kHostMemory; for memory that
  /// is registered the GPU on which it lies is found
  message::Window& create_window(message::WindowSpec spec, int device = kHostMemory);
  static constexpr int kHostMemory = -1;
  /// All ranks call.
  void free_window(message::Window& window);
  /// Local, of a window without counters (Messenger::release_window).
  void release_window(message::Window& window);
  /// @throws message::Refused for what cannot be right
  void check(const message::OperationSpec& operation);
  /// Runs; not ordered with operations above that were started with requests.
  void run(const message::OperationSpec& operation);
  void start(const message::OperationSpec& operation, std::shared_ptr<Request> request);
  /// A put and the signal that follows it; the request ends with the put.
  void run_both(const message::OperationSpec& put, const message::OperationSpec& signal);
  void start_both(const message::OperationSpec& put, const message::OperationSpec& signal,
                  std::shared_ptr<Request> request);
  /// Of all that this rank did to the window.
  void flush(message::Window& window);
  void add(message::Batch& batch, const message::OperationSpec& operation);
  void run(message::Batch& batch);
  /// `batch` must live until the request ends.
  void start(message::Batch& batch, std::shared_ptr<Request> request);
  /// On a CUDA stream, in its order.
  void enqueue(std::span<const message::OperationSpec> operations, DeviceStream stream);
  void enqueue(message::Batch& batch, DeviceStream stream);
  /// The same, to begin when something on the GPU has stored the trigger.
  message::StreamCalls::Trigger arm(const message::Batch& batch, DeviceStream stream);
  void enqueue(const message::Messenger::Message& message, DeviceStream stream);
  /// For kernels (message/kernel_calls.h).
  rwDeviceWindow device_window(message::Window& window);
  rwDeviceBatch device_batch(message::Batch& batch);
  /// How many signals of `source` have arrived.
  std::uint64_t arrived(message::Window& window, int source, int slot);

  /// Waits for all started operations, notifies the others, and leaves.
  void finalize();
  /// Ends all operations with kAborted and notifies the others. Does not wait.
  void abort(const std::string& reason);
  [[nodiscard]] const bootstrap::FailureState& failure() const noexcept { return failure_; }
  /// Calls `hook` once, by any thread, when this communicator breaks (or now, if it is broken). It
  /// takes no lock and does not throw. It is forgotten with the communicator.
  void when_broken(std::function<void()> hook) { failure_.when_broken(std::move(hook)); }

  /// From now on runs this schedule for its collective. All ranks must call with the same one.
  void use_schedule(std::shared_ptr<const schedule::Checked> checked);
  /// An operation of this rank may stand still for this long from now on, or for TIMEOUT where that
  /// is shorter; zero for TIMEOUT alone, negative for ever.
  void set_timeout(std::chrono::nanoseconds limit) noexcept;
  void forget_schedules();

  /// A small all-gather over the bootstrap: out of the data path, for setup and reports.
  void exchange(std::span<std::byte> all, std::size_t bytes_each);
  /// The algorithm that this call runs with.
  std::string algorithm_of(const CollectiveCall& call);
  /// The machine that the ranks run on, with the ranks at their GPUs after attach_device(). Equal
  /// on all ranks. Local; the first call may take some milliseconds. Valid until attach_device().
  const machine::Machine& machine();
  /// The candidates for this call, the cheapest first, the one that runs, and who chose it
  /// (comm/explain.h).
  struct Explained {
    std::vector<tune::Choice> candidates;
    tune::Choice choice;    ///< what runs
    std::string algorithm;  ///< as its schedule is named
    std::string_view chosen_by;
    std::optional<tune::BackgroundPlans> background;
    std::optional<tune::Choice> later;   ///< where they are made, and not in use yet
    std::optional<std::uint64_t> first;  ///< the call from which on they are in use, once agreed
    std::optional<ChunkReport> chunks;   ///< on host memory
    std::optional<FormReport> forms;     ///< on host memory
  };
  /// Of a call on the GPU's memory after attach_device(), else on the host's.
  /// @throws Error as CallPipeline::get()
  Explained explain(const CollectiveCall& call);
  /// The machine whose links explain() tells: that which calls are tuned for, or the one of the
  /// ranks' GPUs. Rank r is gpus()[r]. Null where ranks have no node in the machine's graph.
  [[nodiscard]] const topology::Topology* planned_machine() noexcept {
    if (device_calls_ == nullptr) return host_calls_->tuner().machine();
    const topology::Topology* tuned_for = device_calls_->tuner().machine();
    return tuned_for != nullptr ? tuned_for : machine_->planned.get();
  }

  /// The calls and their progress (setting TRACE). Any thread, any time.
  [[nodiscard]] const trace::CallRecords& records() const noexcept { return records_; }
  /// What all ranks say of themselves; null without setting STATUS. For the service thread.
  /// This rank's GPU, or -1. Any thread, any time.
  [[nodiscard]] int device_number() const noexcept {
    return device_number_.load(std::memory_order_relaxed);
  }
  /// What this rank has sent, by peer and kind of link (setting TRACE). Any thread, any time.
  [[nodiscard]] const executor::Traffic& traffic() const noexcept { return traffic_; }
  /// For whom this rank waits while nothing moves. Any thread, any time.
  [[nodiscard]] const Stall& stall() const noexcept { return stall_; }

  // WaitHook, for the thread that waits on this communicator.
  bool poll() override;
  bool sleep(std::chrono::nanoseconds at_most) override;
  void stalled(std::chrono::nanoseconds since_progress) override;

  // ---- for tasks ------------------------------------------------------------------------

  link::Links& links() noexcept { return *links_; }
  /// What the call runs with. The reference holds until the next call of this function.
  /// @throws Error as CallPipeline::get()
  HostCall& host_call(const CollectiveCall& call, std::uint64_t number) {
    return static_cast<HostCall&>(host_calls_->get(call, number));
  }
  HostExecutor& host_executor() noexcept { return *host_executor_; }
  /// Of the call's algorithm in records(), for what the host runs; and of enqueued ones that were
  /// run by their schedule. @param protocol  of links that have several
  std::uint16_t label_of(PreparedCall& call, std::string_view protocol = {}) {
    std::uint16_t& label = call.record_label();
    if (label == 0 && records_.enabled()) [[unlikely]]
      label = records_.label_of(call.choice().schedule->schedule().algorithm, protocol,
                                call.sent_bytes());
    return label;
  }
  /// Before a task arms anything.
  void forget_last() noexcept { last_.collective = nullptr; }
  /// Of sends and receives on host memory.
  [[nodiscard]] const tune::Choice& message_choice() const noexcept { return message_choice_; }
  [[nodiscard]] int point_to_point_channel() const noexcept { return point_to_point_channel_; }
  [[nodiscard]] const tune::GroupFacts& facts() const noexcept { return facts_; }
  /// nullptr on a machine that is there.
  [[nodiscard]] const machine::Emulation* emulation() const noexcept { return emulation_.get(); }
  [[nodiscard]] bool check_calls() const noexcept { return check_calls_; }

 private:
  Communicator(std::unique_ptr<bootstrap::Bootstrap> bootstrap, const Config& config,
               Runtime& runtime);
  void connect();

  // While one lives, its thread uses the communicator. Every function that needs one thread at a
  // time has one.
  class Use;

  std::unique_ptr<Task> new_task(const CollectiveCall& call);
  std::unique_ptr<Task> new_task(std::vector<PointToPointCall> calls);
  // What only operations on windows need; made by the first window.
  message::Messenger& messenger();
  [[nodiscard]] std::unique_ptr<link::NetworkLinks> message_links(
      link::NetworkLinks::Options options);
  // Runs `body(messenger)`, for an operation on windows.
  template <typename Body>
  auto with_messenger(Body&& body);
  void enter_queue(std::unique_ptr<Task> task, std::vector<std::shared_ptr<Request>> requests);
  // Setting TRACE_FILE: writes what records_ has.
  void write_records() const noexcept;
  // DEBUG=TRACE: every call, as it was made.
  void trace(const CollectiveCall& call, std::string_view how) const;
  void trace(const PointToPointCall& call, std::string_view how) const;
  void execute(Task& task);
  // The same without a range for tools (core/nvtx.h), for who has one.
  // @param turns  that its wait has taken already
  void walk_through(Task& task, std::uint64_t turns = 0);
  // Of the call's record, kept with what it runs with.
  const trace::CallRecords::Shape& record_shape(HostCall& prepared, const CollectiveCall& call) {
    std::optional<HostCall::Recorded>& kept = prepared.recorded();
    if (!kept.has_value() || kept->carried != call.carried) [[unlikely]]
      kept = {call.carried,
              trace::CallRecords::shape_of(operation_of(call), label_of(prepared), false)};
    return kept->shape;
  }
  // What the call runs with, if it needs no task unless it must wait; else null. Forgets last_.
  HostCall* short_call(const CollectiveCall& call);
  // Throws kInterrupted when the program wants the call to end.
  void ask_program();
  // Sends this rank's call to the ranks it waits for, and checks the calls that they sent.
  void compare_calls();
  // For an error at the deadline: "" or what it ends with, from "; " on.
  std::string who_is_missing(const std::vector<int>& waiting_for);
  // Tells it in stall_.
  void tell_stall(std::chrono::nanoseconds since_progress);
  void compare_call(int peer, std::span<const std::byte> told);
  // By the bootstrap. Breaks the communicator when it fails.
  void all_gather(std::span<std::byte> all, std::size_t bytes_each, Deadline deadline);
  // The caller's buffers are its own again: nobody else touches them after this.
  void give_back_buffers() noexcept;
  // Breaks the communicator, and notifies the others.
  void seal(const Error& error);
  [[noreturn]] void broke(const Error& error);
  void drain_queue();
  void worker();
  // Collective calls are numbered from 1. Before each: what all ranks begin with it.
  // @throws Error as the operations
  void before_call() {
    if (calls_ + 1 >= next_stop_) [[unlikely]]
      stop_before_call();
  }
  void stop_before_call();
  std::uint64_t next_number() noexcept { return ++calls_; }
  // As label_of(), of what copy engines make.
  std::uint16_t label_of_copies(PreparedCall& call);
  std::uint16_t label_of_copied_messages();

  const machine::Machine& known_machine();
  // Collective: those that are nearest to the ranks' GPUs come first.
  link::Rails rails_of_gpu(int device);
  // Collective: the machine with each rank on its GPU.
  std::shared_ptr<const machine::Machine> machine_on_devices(int device);

  Runtime& runtime_;
  Config config_;
  bootstrap::FailureState failure_;
  executor::Traffic traffic_;
  // Destroyed bottom up: links use the bootstrap, tasks use the links.
  std::unique_ptr<bootstrap::Bootstrap> bootstrap_;
  int rank_ = 0;
  int size_ = 1;
  std::uint64_t identity_ = 0;
  tune::GroupFacts facts_;
  std::vector<int> host_of_rank_;                    // as in machine::Seats
  std::vector<transport::DeviceProperties> nics_;    // of this rank, between hosts
  std::shared_ptr<const machine::Machine> machine_;  // null as long as nobody needed found_'s
  std::unique_ptr<machine::FoundHosts> found_;       // null where machine_ was given
  std::unique_ptr<machine::Emulation> emulation_;
  std::vector<link::PeerReach> reach_;
  std::unique_ptr<link::Links> links_;
  std::unique_ptr<CallAgreement> agreement_;  // null where nothing is planned in the background
  std::unique_ptr<HostExecutor> host_executor_;
  std::unique_ptr<CallPipeline> host_calls_;
  std::unique_ptr<DeviceGroup> device_;
  std::unique_ptr<CallPipeline> device_calls_;
  tune::Choice message_choice_;
  std::map<Collective, std::shared_ptr<const schedule::Checked>> given_schedules_;
  // The last call, while `collective` is still armed for it and nothing else: the same call again,
  // with the same buffers, has little to do before its steps.
  struct Last {
    CollectiveCall call;
    PreparedCollective* collective = nullptr;
    bool repeats = false;  // it has no note for the next call (HostCall::ends_with_note())
    trace::CallRecords::Shape record;
  };
  Last last_;
  int point_to_point_channel_ = 0;
  bool check_calls_ = true;
  std::uint64_t calls_ = 0;
  std::uint64_t next_stop_ = CallAgreement::kNever;
  bool finalized_ = false;
  std::atomic<int> device_number_{-1};
  bool helped_by_threads_ = false;
  trace::CallRecords records_;
  std::uint16_t copied_messages_label_ = 0;
  Stall stall_;
  std::unique_ptr<trace::RollCall> roll_call_;  // null where nothing is recorded
  // Null, and nothing, where nobody may ask (setting STATUS).
  std::unique_ptr<monitor::RankSummaries> summaries_;
  std::optional<monitor::MonitoredComm> monitored_;
  Mutex device_stop_mutex_;  // held by the thread that looks why a kernel stopped

  executor::HostTeam team_;
  executor::Waiter::Policy wait_policy_;
  std::unique_ptr<executor::Waiter> waiter_;
  std::atomic<std::chrono::nanoseconds> timeout_;  // zero is for ever
  Task* current_ = nullptr;                        // for stalled()
  std::set<int> told_;                             // ranks to which the current call was sent
  std::chrono::steady_clock::time_point next_compare_{};
  std::chrono::steady_clock::time_point next_ask_{};
  std::chrono::steady_clock::time_point next_tell_{};

  struct Queued {
    std::unique_ptr<Task> task;
    std::vector<std::shared_ptr<Request>> requests;
  };
  const Belonging belonging_;
  // The thread that uses the communicator, or 0. Plain loads and stores, since an atomic exchange
  // would wait for the stores of the last operation to reach the other ranks: see Use.
  std::atomic<std::uintptr_t> user_{0};
  bool has_worker_ = false;  // by the thread that uses the communicator
  Mutex engine_mutex_;       // held by the thread that runs a task
  Mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<Queued> queue_ RW_GUARDED_BY(queue_mutex_);
  bool working_ RW_GUARDED_BY(queue_mutex_) = false;  // the worker holds a task
  bool stop_ RW_GUARDED_BY(queue_mutex_) = false;
  std::thread worker_;  // by the thread that uses the communicator
  // Last, so that its thread ends first.
  std::unique_ptr<message::Messenger> messenger_;
};

}  // namespace ropewalk::comm
