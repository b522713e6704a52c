// Windows, and the operations on them, of one rank of a communicator.
//
// Where a peer's part is mapped an operation is done by the calling thread at once: a put is a
// copy, a signal one store with release. Everything else is carried by links (carrier.h), which
// whoever waits moves, and a thread of the messenger when nobody does: a rank that computes is
// served all the same. That thread also ends what was started with a request. It begins with the
// first operation, or window, that needs it.
//
// Order: the operations of one rank on one peer take effect in the order in which they were
// started, so that a signal publishes the puts before it; on different peers in any. (Mapped:
// x86 stores are in order, and the signal's store has release semantics elsewhere. Carried: a link
// is a FIFO. Only a get reads later than it was started, at the latest when it ends: a link's other
// end cannot hold back what comes after a get's request while it waits for room for the answer, or
// two ranks that answer each other would wait for ever.) The order is that of one-sided calls among
// themselves, not of collectives.
//
// On GPU memory a put or get of the host is a copy that is waited for, and operations may be
// enqueued on a CUDA stream instead (stream_calls.h): then the stream does them, or triggers a
// link, and the messenger's thread watches over what streams wait for.
//
// The model is that of MPI's passive target with all windows unlocked, of OpenSHMEM's put_signal,
// and of NCCL's PutSignal, Signal and WaitSignal (NCCL 2.29), whose waits count arrivals.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/failure_state.h"
#include "core/deadline.h"
#include "core/mutex.h"
#include "core/pacer.h"
#include "executor/host/waiter.h"
#include "link/links.h"
#include "link/network_links.h"
#include "message/batch.h"
#include "message/carrier.h"
#include "message/helping.h"
#include "message/kernel_calls.h"
#include "message/operation.h"
#include "message/stream_calls.h"
#include "message/window.h"

namespace ropewalk::message {

/// Threads: one at a time, besides its own.
///
/// Errors: Refused (window_memory.h) where nothing was done, for what cannot be right and for a
/// peer that left in order; every other Error means that the ranks may be out of step.
class Messenger : private executor::WaitHook {
 public:
  struct Options {
    std::vector<link::PeerReach> reach;  ///< by rank
    ShmBacking backing = ShmBacking::kAuto;
    executor::Waiter::Policy policy;
    /// How long a wait may last; zero: for ever. Asked by any thread.
    std::function<std::chrono::nanoseconds()> timeout;
    /// After a link broke: until when the watch over the ranks says who died.
    std::chrono::nanoseconds peer_loss_time{};
    /// The GPU of a stream. @throws Error
    std::function<transport::window::Gpu&(transport::window::CuStream)> gpu_of;
    /// Setting STREAM_KERNELS: streams do all calls as they do batches, where kernels can.
    bool stream_kernels = false;
    /// Called once, when the first operation needs a link.
    std::function<std::unique_ptr<link::NetworkLinks>(link::NetworkLinks::Options)> make_links;
    /// A link broke: breaks the communicator. From any thread.
    std::function<void(const Error&)> on_error;
  };
  /// Told of the end of what was started: null for success. By any thread; must not call back.
  using Ended = std::function<void(const Error*)>;

  /// The references outlive this.
  Messenger(bootstrap::Bootstrap& bootstrap, bootstrap::FailureState& failure, Options options);
  /// Ends everything with kAborted.
  ~Messenger() override;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  /// Collective. The window lives as long as this; freed, it is closed.
  /// @throws Refused on all ranks alike, also for want of memory on one of them
  Window& create_window(const WindowSpec& given, Deadline deadline);
  /// Collective: returns when all operations of all ranks on it are done and no rank will use it.
  /// @throws Refused kInvalidUsage while this rank has operations with requests on it
  void free_window(Window& window, Deadline deadline);

  /// Local: this rank lets go of a window without counters, before the memory of its part is freed.
  /// What others put to it must have come (they signal elsewhere), and nothing more may; the ranks
  /// need not call together.
  /// @throws Refused kInvalidUsage while a stream has operations of this rank on it
  void release_window(Window& window);

  /// @throws Refused for what cannot be right
  void validate(const OperationSpec& spec);
  /// Runs. When it returns, the source of a put may be reused, what a get asked for is there, a
  /// flush's operations are complete at the peer.
  void run(const OperationSpec& spec);
  /// Starts, and tells of the end. What needs no link is done at once.
  void start(const OperationSpec& spec, Ended ended);

  /// A flush to all peers that this rank has used since the last.
  void flush_all(Window& window);

  /// @throws Refused kInvalidUsage while it is running
  void run(Batch& batch);
  /// `batch` must live until the end.
  void start(Batch& batch, Ended ended);

  /// Enqueues them on a CUDA stream, which does them in their order, and returns.
  /// @throws Refused for what cannot be right, and kInvalidUsage where streams cannot; kCuda
  void enqueue(std::span<const OperationSpec> specs, transport::window::CuStream stream);
  void enqueue(Batch& batch, transport::window::CuStream stream);
  /// The batch begins when its trigger was stored.
  StreamCalls::Trigger arm(const Batch& batch, transport::window::CuStream stream);

  /// A message of a queue.
  struct Message {
    Window* window = nullptr;  ///< of queues
    bool sends = false;        ///< else it receives
    int peer = 0;
    int slot = 0;
    void* memory = nullptr;  ///< source or destination
    std::size_t bytes = 0;
  };
  /// By a kernel on the stream, captured or not.
  /// @throws as enqueue() above
  void enqueue(const Message& message, transport::window::CuStream stream);

  /// The window as kernels use it; of one in the host's memory, as host threads do.
  /// @throws Refused kInvalidUsage for a closed one; Error kCuda
  rwDeviceWindow device_window(Window& window);

  /// The batch as kernels launch it; of windows in the host's memory, as host threads do.
  /// @throws Refused kInvalidUsage for what kernels cannot, kInvalidArgument; Error kCuda
  rwDeviceBatch device_batch(Batch& batch);

  /// For threads that wait for what was started: see helping.h.
  [[nodiscard]] const std::shared_ptr<Helping>& helping() const noexcept { return helping_; }
  /// Makes progress until `done`, or until `last`. Any thread may call, one at a time.
  void help(const std::function<bool()>& done, std::chrono::steady_clock::time_point last);

  /// How many signals of `source` have arrived on `slot`, those waited for included.
  [[nodiscard]] std::uint64_t arrived(Window& window, int source, int slot);

  /// Waits for what was started, and until the peers have what this rank sent them. Before leaving.
  void finish();
  /// The last step: closes the links, which a peer takes for a loss unless this rank leaves the
  /// communicator within its `peer_loss_time`.
  /// @pre finish()
  void leave();
  /// Ends all that was started with `error`, and touches no memory of it from now on.
  void stop(const Error& error);

 private:
  class Driving;
  struct Started {
    std::unique_ptr<Operation> operation;  // or
    Batch* batch = nullptr;
    Ended ended;
  };

  // WaitHook, of the thread that waits in await().
  bool poll() override;
  void stalled(std::chrono::nanoseconds since_progress) override;
  void look(std::chrono::nanoseconds waited);
  template <typename Done>
  void await(const OperationSpec& spec, Done&& done);

  void require_usable(const Window& window) const;
  void require_idle(const Window& window) RW_REQUIRES(mutex_);
  void close(Window& window) RW_REQUIRES(mutex_);
  void require_peer(const OperationSpec& spec) const;
  [[nodiscard]] bool has_left(int peer) const;
  // At once, where the peer is mapped. @return false when a link must carry it
  static bool run_mapped(const OperationSpec& spec);
  void add_streams(transport::window::Gpu& gpu) RW_REQUIRES(mutex_);
  KernelCalls& kernels_of(const Window& window) RW_REQUIRES(mutex_);
  void capture(std::span<const OperationSpec> specs, StreamCalls& streams,
               transport::window::CuStream stream, Batch* batch) RW_REQUIRES(mutex_);
  // @param what describes the call, for an error
  StreamCalls& streams_of(const Window& window, const std::function<std::string()>& what)
      RW_REQUIRES(mutex_);
  // So that streams of the GPU of `stream` may use its window. @pre it is in the host's memory
  void open_to_streams(const OperationSpec& spec, transport::window::CuStream stream)
      RW_REQUIRES(mutex_);
  StreamCalls& streams_of(const OperationSpec& spec) RW_REQUIRES(mutex_);
  void enqueue(std::span<const OperationSpec> specs, transport::window::CuStream stream,
               StreamCalls::Trigger* trigger, Batch* batch = nullptr);
  const DeviceBatch& prepare(Batch& batch, std::span<const OperationSpec> specs)
      RW_REQUIRES(mutex_);
  static std::string describe_message(const Message& message);
  // What its launch needs. @throws as enqueue()
  const QueueCall& prepare(const Message& message);
  static std::vector<OperationSpec> specs_of(const Batch& batch);
  template <typename Ready>
  void await_streams(Ready&& ready) RW_REQUIRES(mutex_);
  static std::uint64_t count_signal(const OperationSpec& spec);
  static void require_countable(const OperationSpec& spec);
  // `now`: what was counted before.
  static void require_fits(const OperationSpec& spec, std::uint64_t now);
  // @return false where one of it has to be looked at again: nothing was done then
  bool launch_again(const Batch& batch, transport::window::CuStream stream);
  void launch_batch(const StreamBatch& batch, StreamCalls& streams,
                    transport::window::CuStream stream) RW_REQUIRES(mutex_);
  [[nodiscard]] bool streams_busy() const RW_REQUIRES(mutex_);
  bool poll_streams() RW_REQUIRES(mutex_);
  bool poll_kernels() RW_REQUIRES(mutex_);
  bool poll_queues() RW_REQUIRES(mutex_);
  void break_with(const Error& error) RW_REQUIRES(mutex_);
  // Starts one; a wait ends as check_wait() says. @return whether it has ended
  bool begin(Operation& operation) RW_REQUIRES(mutex_);
  // What a stream or a kernel asks a link for; its signals are counted.
  void begin_counted(Operation& operation) RW_REQUIRES(mutex_);
  static bool check_wait(Operation& operation);
  static std::uint64_t count_wait(const OperationSpec& spec);
  void uncount_wait(const Operation& operation);
  // @return whether it has ended
  bool advance(Batch& batch) RW_REQUIRES(mutex_);
  // The operations after a failed one are not started.
  static void skip_rest(Batch& batch);
  static const Operation* failed(const Batch& batch);
  void begin_batch(Batch& batch);
  [[noreturn]] static void raise(const Operation& operation);

  bool drive();
  bool poll_locked() RW_REQUIRES(mutex_);
  bool end_started() RW_REQUIRES(mutex_);
  void stop_locked(const Error& error) RW_REQUIRES(mutex_);
  bool after_error(const Error& error) RW_REQUIRES(mutex_);
  bool drop_left() RW_REQUIRES(mutex_);
  void need_thread();
  void wake() noexcept;
  void work();
  void rest(std::chrono::nanoseconds idle);

  bootstrap::Bootstrap& bootstrap_;
  bootstrap::FailureState& failure_;
  Options options_;
  std::vector<std::unique_ptr<Window>> windows_;
  std::uint32_t last_number_ = 0;
  std::set<std::pair<std::uint32_t, int>> unflushed_;  // window, carried peer

  executor::Waiter waiter_;
  const OperationSpec* awaited_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> await_began_;
  std::chrono::steady_clock::time_point next_ask_{};
  Pacer look_pacer_{std::chrono::milliseconds(10)};

  // Batches that the messenger's thread goes on with: then it, too, uses windows' counters.
  std::atomic<int> deferred_{0};
  const std::shared_ptr<Helping> helping_ = std::make_shared<Helping>(*this);
  std::atomic<int> driving_{0};  // threads that poll while they wait
  std::atomic<int> wanted_{0};   // threads that wait for mutex_
  Mutex mutex_;
  std::unique_ptr<Carrier> carrier_ RW_GUARDED_BY(mutex_);
  std::list<Started> started_ RW_GUARDED_BY(mutex_);
  std::map<transport::window::Gpu*, std::unique_ptr<StreamCalls>> streams_ RW_GUARDED_BY(mutex_);
  std::map<transport::window::Gpu*, std::unique_ptr<KernelCalls>> kernels_ RW_GUARDED_BY(mutex_);
  std::vector<Window*> with_queues_ RW_GUARDED_BY(mutex_);  // that links carry
  const KernelQueues::Post post_ =
      [this](int peer, const Frame& frame, std::span<const std::byte> data)
          RW_REQUIRES(mutex_) { carrier_->post(peer, frame, data); };
  std::set<int> dropped_ RW_GUARDED_BY(mutex_);
  bool stopped_ RW_GUARDED_BY(mutex_) = false;
  Pacer stream_pacer_ RW_GUARDED_BY(mutex_){std::chrono::milliseconds(5)};
  Pacer left_pacer_ RW_GUARDED_BY(mutex_){std::chrono::milliseconds(20)};
  std::optional<std::chrono::steady_clock::time_point> left_seen_ RW_GUARDED_BY(mutex_);

  // Streams or kernels may ask for a link at any time: the thread takes short naps only.
  std::atomic<bool> asked_{false};
  std::atomic<bool> ends_{false};
  std::atomic<bool> awake_{true};
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::thread thread_;  // by the thread that uses the messenger
};

}  // namespace ropewalk::message
