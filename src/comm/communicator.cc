#include "comm/communicator.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <span>
#include <utility>

#include "bootstrap/agreed_error.h"
#include "comm/call_report.h"
#include "comm/copy_plan.h"
#include "comm/device_stop.h"
#include "comm/own_summary.h"
#include "comm/rank_record.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/nvtx.h"
#include "core/ticks.h"
#include "executor/note.h"
#include "machine/found_rails.h"
#include "machine/nic_places.h"
#include "machine/placement.h"
#include "message/device_part.h"
#include "transport/registry.h"
#include "transport/window/device/gpu_memory.h"
#include "tune/processors.h"
#include "tune/worth_planning.h"

namespace ropewalk::comm {
namespace {

// After waiting this long for a rank that left in order, a rank gives up: messages sent before the
// leave have long arrived.
constexpr std::chrono::milliseconds kLeftGrace{200};

// After waiting this long, a rank asks the ranks that it waits for whether their calls are the
// same.
constexpr std::chrono::milliseconds kCompareAfter{100};
constexpr std::uint32_t kCallTag = 0x43000000;
constexpr std::uint32_t kShrinkTag = 0x45000000;

// Of each buffer: calls of which no chunk is long enough to be copied by two ranks at once.
constexpr std::size_t kShortCallBytes = std::size_t{32} << 10U;
static_assert(!executor::is_shared_copy(kShortCallBytes));

// Turns of a wait before the first yield where the rank that is waited for may want this core.
constexpr std::uint64_t kSharedCoreTurns = 32;

// 0 is no thread.
std::uintptr_t this_thread() noexcept {
#if __has_builtin(__builtin_thread_pointer)
  return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
#else
  return pthread_self();
#endif
}

// For tools.
std::pair<std::string_view, std::size_t> describe_range(const CollectiveCall& call) {
  return {operation_name(call), message_bytes(call)};
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += fmt::format(" {}", rank);
  return text;
}

void make_unique(std::vector<int>& ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
}

}  // namespace

// Two threads that enter at the same instant both find nobody there. Then the mark of the one that
// wrote last stays, and the other, or whoever leaves after the mark was taken away, finds on
// leaving that it is not its own.
class Communicator::Use {
 public:
  explicit Use(Communicator& comm) : comm_(comm), self_(this_thread()) {
    comm.belonging_.require_here("the communicator");
    if (const std::uintptr_t user = comm.user_.load(std::memory_order_relaxed); user != 0) {
      refuse(user);
    }
    comm.user_.store(self_, std::memory_order_relaxed);
  }
  ~Use() {
    if (comm_.user_.load(std::memory_order_relaxed) == self_) {
      comm_.user_.store(0, std::memory_order_release);
    } else {
      seal();
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  // Not inlined: within a short operation each nanosecond matters.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(std::uintptr_t user) const {
    throw Error(Errc::kInvalidUsage,
                "rank {} is in a call on this communicator, by {} thread: one at a time; let each "
                "thread have a communicator of its own, or take a lock",
                comm_.rank(), user == self_ ? "this same" : "another");
  }
  [[gnu::cold, gnu::noinline]] void seal() noexcept {
    try {
      comm_.seal(Error(Errc::kInvalidUsage,
                       "two threads used the communicator of rank {} at once: one at a time",
                       comm_.rank()));
    } catch (const std::exception& error) {
      log::warn("rank {}: {}", comm_.rank(), error.what());
    }
  }

  Communicator& comm_;
  const std::uintptr_t self_;
};

std::unique_ptr<Communicator> Communicator::join(const bootstrap::UniqueId& id, int rank, int size,
                                                 Runtime& runtime) {
  const Config config = runtime.config();
  std::unique_ptr<bootstrap::Bootstrap> bootstrap =
      bootstrap::Bootstrap::join(id, rank, size, config, deadline_of(config), runtime.context());
  // make_unique cannot reach the private constructor.
  std::unique_ptr<Communicator> comm(new Communicator(std::move(bootstrap), config, runtime));
  comm->identity_ = std::bit_cast<std::uint64_t>(bootstrap::decode_unique_id(id).service);
  try {
    comm->connect();
  } catch (const bootstrap::AgreedError&) {
    comm->finalized_ = true;
    comm->bootstrap_->leave();
    throw;
  } catch (const Error& error) {
    // A rank that learned of another one's failure from a peer does not report it again.
    comm->failure_.check();
    comm->bootstrap_->abort(error.what());
    throw;
  }
  if (comm->records_.enabled()) {
    comm->roll_call_ = std::make_unique<trace::RollCall>(*comm->bootstrap_, comm->records_);
    if (config.flag(Setting::kStatus)) {
      comm->summaries_ = std::make_unique<monitor::RankSummaries>(
          *comm->bootstrap_, [own = comm.get()] { return own_summary(*own); });
      comm->monitored_.emplace(monitor::MonitoredComm{comm->identity_, rank, size, comm->config_,
                                                      comm->failure_, *comm->summaries_});
      runtime.status().add(*comm);
      runtime.job_ports().add(*comm->monitored_);
    }
    if (const std::string& plugin = config.text(Setting::kProfilerPlugin); !plugin.empty()) {
      runtime.profiler().add(plugin, comm->records_,
                             {fmt::format("{:016x}", comm->identity_), comm->identity_,
                              comm->facts_.num_hosts, size, rank});
    }
  }
  return comm;
}

Communicator::Communicator(std::unique_ptr<bootstrap::Bootstrap> bootstrap, const Config& config,
                           Runtime& runtime)
    : runtime_(runtime),
      config_(config),
      bootstrap_(std::move(bootstrap)),
      rank_(bootstrap_->rank()),
      size_(bootstrap_->size()),
      check_calls_(config.flag(Setting::kCheckCalls)),
      records_(records_kept(config), config.text(Setting::kTrace) == "all"),
      team_(bootstrap_->rank()),
      timeout_(config.duration(Setting::kTimeout)) {
  bootstrap_->watch(&failure_);
}

Communicator::~Communicator() {
  if (worker_.joinable()) {
    {
      const Lock lock(queue_mutex_);
      stop_ = true;
    }
    queue_changed_.notify_all();
    worker_.join();
  }
  // Another thread may be leaving an operation that abort() ended.
  { const Lock wait(engine_mutex_); }
  while (user_.load(std::memory_order_acquire) != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  runtime_.status().remove(*this);
  if (monitored_) runtime_.job_ports().remove(*monitored_);
  runtime_.profiler().remove(records_);
  messenger_.reset();
  failure_.forget_hooks();
  bootstrap_->watch(nullptr);
  if (finalized_) return;
  write_records();
  bootstrap_->abort(failure_.broken()
                        ? fmt::format("the communicator was destroyed after its error: {}",
                                      failure_.error().what())
                        : "the communicator was destroyed without being finalized");
}

void Communicator::connect() {
  const Deadline deadline = deadline_of(config_);
  HostInfo host_info = exchange_records(*bootstrap_, config_, runtime_, deadline);
  facts_ = host_info.facts;
  point_to_point_channel_ = host_info.channels;
  if (facts_.num_hosts > 1) {
    // Network links report every chunk, memory links do not.
    const std::uint32_t slots = host_info.shape.slots;
    facts_.lag_slots =
        facts_.max_ranks_per_host > 1 ? executor::HostTeam::certain_slots(slots) : slots;
  }
  HostExecutor::Options options;
  options.rank = rank();
  options.num_ranks = size();
  options.max_channels = point_to_point_channel_;
  options.lag_slots = facts_.lag_slots;
  options.check_tags = check_calls_;
  options.crowded = facts_.ranks_per_processor > 1;
  // Notes on chunks travel with the tags.
  if (check_calls_ && config_.flag(Setting::kAdaptChunks)) {
    options.tuned_slot_bytes = host_info.shape.slot_bytes;
  }
  host_of_rank_ = host_info.seats.host_of_rank;
  if (config_.text(Setting::kEmulate).empty()) {
    machine_ = machine::find_machine(*bootstrap_, config_, host_info.topology_given, deadline);
  } else {
    const machine::EmulatedMachine emulated = runtime_.emulated_machines().get(config_, size());
    machine_ = emulated.machine;
    emulation_ = machine::Emulation::join(*bootstrap_, config_, emulated, deadline);
  }
  // Launchers also deal ranks out to hosts, or to a host's NUMA nodes, in turn: then a ring in
  // their order would leave a host or a node at every step. With a machine that TOPOLOGY names, its
  // links price every shape.
  if (machine_ == nullptr) facts_.ring_order = machine::ring_near(host_info.seats);
  std::unique_ptr<transport::Transport> network;
  if (facts_.num_hosts > 1) {
    network =
        transport::make_transport((emulation_ != nullptr ? transport::process_provider()
                                                         : transport::chosen_provider(config_))
                                      .name,
                                  transport::for_host_memory(config_));
    if (network->num_devices() == 0) {
      throw Error(Errc::kSystem, "rank {} has no device of the transport {} (setting NET): {}",
                  rank(), network->name(), network->why_no_devices());
    }
  }
  if (network != nullptr) {
    host_info.constants.network_message *= network->properties(0).message_weight;
    facts_.joined_bytes = network->properties(0).joined_bytes;
  }
  link::Rails rails;
  if (network != nullptr && emulation_ == nullptr) {
    nics_ = machine::devices_of(*network);
    // What one NIC carries decides between plans and shapes.
    const bool one_too = machine_ == nullptr && tune::can_plan(facts_);
    machine::FoundRails found = machine::find_rails(
        *bootstrap_, config_, runtime_.nic_rates(), *network, machine_.get(), host_of_rank_,
        facts_.max_channels, one_too, deadline, [this] { failure_.check(); });
    rails = std::move(found.rails);
    facts_.rail_rates = std::move(found.rates);
    facts_.nic_rate = found.rate_of_one;
    facts_.nic_sharing_cost = found.sharing_cost;
  }
  const std::shared_ptr<link::HostSegment> segment = host_info.segment;
  reach_ = host_info.reach;
  links_ = std::make_unique<link::Links>(*bootstrap_, std::move(host_info.reach),
                                         std::move(host_info.segment), std::move(network),
                                         host_info.shape);
  if (records_.enabled()) {
    team_.count_in(traffic_, size());
    links_->to_hosts().count_in(traffic_);
  }
  if (emulation_ != nullptr) links_->to_hosts().pace(emulation_->pacer());
  links_->to_hosts().spread(
      std::move(rails), point_to_point_channel_,
      machine_ != nullptr ? machine::nics_of_routes(*machine_) : link::NicsOfRoute{});
  if (config_.flag(Setting::kNetEncrypt)) links_->to_hosts().seal();
  if (machine_ == nullptr) {
    found_ = std::make_unique<machine::FoundHosts>(*bootstrap_, config_, runtime_.host(),
                                                   std::move(host_info.seats), segment, deadline);
  }
  // An emulated machine's links are slowed, and this host is not: in the machine's time its work
  // for a message is shorter by that factor.
  if (emulation_ != nullptr) host_info.constants.network_message /= emulation_->slowdown();
  host_executor_ = std::make_unique<HostExecutor>(team_, options);
  host_calls_ = std::make_unique<CallPipeline>(
      tune::host_tuner(config_, facts_, host_info.constants, runtime_.schedules(),
                       machine_ == nullptr ? nullptr : machine_->planned, runtime_.plans()),
      *host_executor_, rank(), size());
  if (host_calls_->tuner().plans() && config_.text(Setting::kPlanning) == "background") {
    agreement_ = std::make_unique<CallAgreement>(*bootstrap_);
    host_calls_->plan_in_background(*agreement_, false);
    next_stop_ = 1;
  }
  message_choice_ = host_calls_->tuner().message(0);

  executor::Waiter::Policy& policy = wait_policy_;
  policy.spin = config_.duration(Setting::kSpin);
  if (facts_.ranks_per_processor > 1) {
    policy.spin = {};
    policy.bare_turns = kSharedCoreTurns;
  }
  // A wait for the network is much longer than a turn of the scheduler, and asking a socket costs
  // as much as one: two ranks that share a core would keep it from each other with questions. (32
  // of them before the first yield took three quarters of the time of an all-reduce of 8 bytes
  // among 4 ranks on 2 cores.)
  if (facts_.num_hosts > 1) {
    policy.spin = {};
    policy.bare_turns = 0;
    // Then sockets wake this thread, and the core is free for what the program computes meanwhile.
    // (After 50 us instead of 200, all-reduces of 256 KiB over loopback took twice as long at
    // times.)
    if (facts_.max_ranks_per_host == 1 && emulation_ == nullptr) {
      policy.hook_sleeps = 4 * config_.duration(Setting::kSpin);
    }
  }
  // A thread that waits for a slowed link leaves the cores to others, and polls less often the more
  // the link is slowed: a message that is noticed late was delivered in time (emulated/
  // link_clock.h), and a chunk of an NVLink takes 20 ms when it is slowed 4000 times.
  if (emulation_ != nullptr) {
    policy.yield = std::chrono::microseconds(100);
    policy.sleep = std::chrono::microseconds(
        std::clamp(static_cast<int>(emulation_->slowdown() / 4), 200, 1000));
  }
  waiter_ = std::make_unique<executor::Waiter>(policy, *this);
  team_.wait_with(waiter_.get());
  log::info(log::kInit, "rank {} of {} joined: {} host(s){}, {} local rank(s), {}", rank(), size(),
            facts_.num_hosts,
            facts_.num_hosts > 1
                ? fmt::format(" joined by {}{}", links_->network(),
                              config_.flag(Setting::kNetEncrypt) ? ", encrypted" : "")
                : "",
            std::ranges::count(host_of_rank_, host_of_rank_[static_cast<std::size_t>(rank())]),
            facts_.all_by_address ? "single copy" : "staged copies");
  if (rank() == 0 && log::enabled(log::Level::kInfo, log::kInit)) {
    try {
      for (const std::string& line : machine::describe(known_machine()))
        log::info(log::kInit, "{}", line);
      if (!facts_.ring_order.empty()) {
        log::info(log::kInit, "rings and chains visit the ranks by host and NUMA node: {}",
                  fmt::join(facts_.ring_order, " "));
      }
    } catch (const Error& error) {
      log::warn("the machine cannot be described: {}", error.what());
    }
  }
}

const machine::Machine& Communicator::known_machine() {
  if (machine_ == nullptr) {
    const Deadline deadline = deadline_of(config_);
    machine_ = std::make_shared<const machine::Machine>(found_->machine([&] {
      failure_.check();
      if (std::chrono::steady_clock::now() < deadline) return;
      throw Error(Errc::kTimeout, "rank {} waits for another rank to discover this host's topology",
                  rank());
    }));
  }
  return *machine_;
}

const machine::Machine& Communicator::machine() {
  const Use use(*this);
  return known_machine();
}

// ---- split ------------------------------------------------------------------------------

void Communicator::all_gather(std::span<std::byte> all, std::size_t bytes_each, Deadline deadline) {
  try {
    bootstrap_->all_gather(all, bytes_each, deadline);
  } catch (const Error& error) {
    broke(error);  // the ranks may be out of step
  }
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  struct Wish {
    std::int32_t color;
    std::int32_t key;
  };
  const Use use(*this);
  failure_.check();
  drain_queue();
  const Lock lock(engine_mutex_);
  const Deadline deadline = deadline_of(config_);
  const auto n = static_cast<std::size_t>(size());
  std::vector<Wish> wishes(n);
  wishes[static_cast<std::size_t>(rank())] = {color, key};
  all_gather(std::as_writable_bytes(std::span(wishes)), sizeof(Wish), deadline);

  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (color >= 0 && wishes[static_cast<std::size_t>(r)].color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
  });
  std::vector<bootstrap::UniqueId> ids(n);
  if (!members.empty() && members.front() == rank()) {
    ids[static_cast<std::size_t>(rank())] = bootstrap::make_unique_id(config_, runtime_.context());
  }
  all_gather(std::as_writable_bytes(std::span(ids)), sizeof(bootstrap::UniqueId), deadline);
  if (members.empty()) return nullptr;
  const auto position = std::find(members.begin(), members.end(), rank()) - members.begin();
  return join(ids[static_cast<std::size_t>(members.front())], static_cast<int>(position),
              static_cast<int>(members.size()), runtime_);
}

std::unique_ptr<Communicator> Communicator::shrink(const std::set<int>& excluded) {
  const Use use(*this);
  failure_.check();
  drain_queue();
  const std::lock_guard lock(engine_mutex_);
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (!excluded.contains(r)) members.push_back(r);
  }
  const auto own = std::find(members.begin(), members.end(), rank());
  if (own == members.end()) {
    throw Error(Errc::kInvalidArgument, "rank {} is excluded but takes part in the call", rank());
  }
  bootstrap::UniqueId id;
  if (own == members.begin()) {
    id = bootstrap::make_unique_id(config_, runtime_.context());
    for (const int peer : std::span(members).subspan(1)) bootstrap_->send(peer, kShrinkTag, id);
  } else {
    bootstrap_->recv(members.front(), kShrinkTag, id, deadline_of(config_));
  }
  return join(id, static_cast<int>(own - members.begin()), static_cast<int>(members.size()),
              runtime_);
}

std::unique_ptr<Communicator> Communicator::grow(const std::optional<bootstrap::UniqueId>& id,
                                                 int num_ranks) {
  struct Wish {
    std::int32_t num_ranks;
    std::int32_t gives_id;
    bootstrap::UniqueId id;
  };
  failure_.check();
  drain_queue();
  const Lock lock(engine_mutex_);
  std::vector<Wish> wishes(static_cast<std::size_t>(size()));
  wishes[static_cast<std::size_t>(rank())] = {num_ranks, id.has_value() ? 1 : 0,
                                              id.value_or(bootstrap::UniqueId{})};
  all_gather(std::as_writable_bytes(std::span(wishes)), sizeof(Wish), deadline_of(config_));
  const Wish* given = nullptr;
  int givers = 0;
  for (std::size_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r].num_ranks != wishes[0].num_ranks) {
      throw Error(Errc::kInvalidArgument, "rank 0 grows to {} ranks, rank {} to {}",
                  wishes[0].num_ranks, r, wishes[r].num_ranks);
    }
    if (wishes[r].gives_id == 0) continue;
    given = &wishes[r];
    ++givers;
  }
  if (num_ranks <= size()) {
    throw Error(Errc::kInvalidArgument, "{} ranks cannot grow to {}", size(), num_ranks);
  }
  if (givers != 1) {
    throw Error(Errc::kInvalidArgument, "{} of {} ranks gave a unique id to grow with; one must",
                givers, size());
  }
  return join(given->id, rank(), num_ranks, runtime_);
}

// ---- operations -------------------------------------------------------------------------

void Communicator::use_schedule(std::shared_ptr<const schedule::Checked> checked) {
  const schedule::Schedule& schedule = checked->schedule();
  if (schedule.num_ranks != size()) {
    throw Error(Errc::kInvalidArgument, "the schedule is for {} ranks, the communicator has {}",
                schedule.num_ranks, size());
  }
  const Use use(*this);
  drain_queue();
  const Lock lock(engine_mutex_);
  last_ = {};
  const bool fits_host = schedule.num_channels() <= host_executor_->max_channels();
  if (device_calls_ != nullptr) device_calls_->use_schedule(checked);
  // One for GPUs may have more channels than there are links in host memory.
  if (device_calls_ == nullptr || fits_host) host_calls_->use_schedule(checked);
  given_schedules_[schedule.collective] = std::move(checked);
}

void Communicator::forget_schedules() {
  const Use use(*this);
  drain_queue();
  const Lock lock(engine_mutex_);
  last_ = {};
  if (device_calls_ != nullptr) device_calls_->forget_schedules();
  host_calls_->forget_schedules();
  given_schedules_.clear();
}

void Communicator::trace(const CollectiveCall& call, std::string_view how) const {
  log::trace(log::kColl, "rank {} of {}: {} of {} {}, {}, root {}, input {}, output {}, {}", rank(),
             size(), name(call.collective), call.count, name(call.type), name(call.op), call.root,
             call.input, call.output, how);
}

void Communicator::trace(const PointToPointCall& call, std::string_view how) const {
  log::trace(log::kP2p, "rank {} of {}: {} rank {}, {} {} at {}, {}", rank(), size(),
             call.sends ? "send to" : "receive from", call.peer, call.count, name(call.type),
             call.sends ? call.input : call.output, how);
}

std::unique_ptr<Task> Communicator::make_task(const CollectiveCall& call) {
  const Use use(*this);
  return new_task(call);
}

std::unique_ptr<Task> Communicator::make_task(std::vector<PointToPointCall> calls) {
  const Use use(*this);
  return new_task(std::move(calls));
}

std::unique_ptr<Task> Communicator::new_task(const CollectiveCall& call) {
  failure_.check();
  trace(call, "as a task");
  const Validated valid = validate(call, rank(), size());
  before_call();
  auto task = std::make_unique<CollectiveTask>(*this, call, valid.in_place, next_number());
  task->record_in(records_, records_.begin(operation_of(call), calls_, 0, false), 1);
  return task;
}

std::unique_ptr<Task> Communicator::new_task(std::vector<PointToPointCall> calls) {
  failure_.check();
  for (const PointToPointCall& call : calls) {
    trace(call, "as a task");
    validate(call, size());
  }
  trace::CallRecords::Id first = 0;
  for (const PointToPointCall& call : calls) {
    const trace::CallRecords::Id id = records_.begin(operation_of(call), 0, 0, false);
    if (first == 0) first = id;
  }
  const std::size_t count = calls.size();
  auto task = std::make_unique<PointToPointTask>(*this, std::move(calls));
  task->record_in(records_, first, count);
  return task;
}

void Communicator::stop_before_call() {
  const auto start = std::chrono::steady_clock::now();
  const auto check = [&] {
    failure_.check();
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > kInterruptPeriod) check_interrupt("waiting for the ranks to agree on a call");
    const std::chrono::nanoseconds limit = timeout_.load(std::memory_order_relaxed);
    if (limit.count() > 0 && waited > limit) {
      throw Error(Errc::kTimeout,
                  "rank {} waits for all ranks to agree from which call on new plans are in use",
                  rank());
    }
  };
  try {
    next_stop_ = agreement_->pass(calls_ + 1, check);
  } catch (const Error& error) {
    broke(error);
  }
  // The worker's tasks forget it themselves.
  if (!has_worker_ && agreement_->next(false) <= calls_ + 1) last_.collective = nullptr;
}

void Communicator::run(const CollectiveCall& call) {
  const Use use(*this);
  failure_.check();
  const nvtx::Range range([&] { return describe_range(call); });
  if (log::traces()) [[unlikely]]
    trace(call, "blocking");
  before_call();
  const bool again =
      !has_worker_ && last_.collective != nullptr && last_.repeats && last_.call == call;
  HostCall* prepared = again ? nullptr : short_call(call);
  bool in_place = false;
  if (!again) {
    if (prepared == nullptr) {
      const Validated valid = validate(call, rank(), size());
      CollectiveTask task(*this, call, valid.in_place, next_number());
      task.record_in(records_, records_.begin(operation_of(call), calls_, 0, false), 1);
      drain_queue();
      const Lock lock(engine_mutex_);
      walk_through(task);
      return;
    }
    in_place = validate_buffers(call, prepared->extent(), rank()).in_place;
    last_ = {call, &prepared->collective(), !prepared->ends_with_note(),
             record_shape(*prepared, call)};
  }
  const auto number = static_cast<std::uint32_t>(next_number());
  trace::CallRecords::Id record = 0;
  const auto begin_record = [&] {
    if (record == 0) record = records_.begin_started(last_.record, calls_);
  };
  if (records_.exact()) begin_record();
  std::uint64_t turns = 0;  // of the wait
  try {
    bool done = again
                    ? host_executor_->run_again(*last_.collective, number)
                    : host_executor_->run(*prepared, call, in_place, tag_of(call, number), nullptr);
    if (!done) {
      // The shortest wait needs neither a task nor a look at anything but the links.
      turns = waiter_->bare_turns();
      for (std::uint64_t left = turns; left > 0 && !done; --left) {
        done = host_executor_->walk(*last_.collective);
      }
    }
    if (done) {
      if (!again) host_executor_->completed();
      if (record != 0) {
        records_.complete(record);
      } else {
        records_.add_short(last_.record, calls_);
      }
      return;
    }
  } catch (const Error& error) {
    begin_record();
    broke(error);
  }
  begin_record();
  CollectiveTask task(*this, call, *last_.collective);
  walk_through(task, turns);
  records_.complete(record);
}

HostCall* Communicator::short_call(const CollectiveCall& call) {
  // The worker's tasks reset the last call, too; and an emulated call must begin (execute()).
  if (has_worker_ || emulation_ != nullptr) return nullptr;
  last_.collective = nullptr;
  HostCall& prepared = host_executor_->in_form(host_call(call, calls_ + 1), call);
  const PreparedCollective& collective = prepared.collective();
  // Long calls may wait within a transfer, which takes a task for its deadline.
  const bool is_short =
      std::max(prepared.extent().input_bytes, prepared.extent().output_bytes) <= kShortCallBytes &&
      collective.connected() && collective.strands().size() == 1;
  return is_short ? &prepared : nullptr;
}

void Communicator::run(const std::vector<PointToPointCall>& calls) {
  const Use use(*this);
  const std::unique_ptr<Task> task = new_task(calls);
  drain_queue();
  const Lock lock(engine_mutex_);
  execute(*task);
}

void Communicator::start(const CollectiveCall& call, std::shared_ptr<Request> request) {
  const Use use(*this);
  enter_queue(new_task(call), {std::move(request)});
}

void Communicator::start(std::vector<PointToPointCall> calls, std::shared_ptr<Request> request) {
  const Use use(*this);
  enter_queue(new_task(std::move(calls)), {std::move(request)});
}

void Communicator::start(std::unique_ptr<Task> task,
                         std::vector<std::shared_ptr<Request>> requests) {
  const Use use(*this);
  enter_queue(std::move(task), std::move(requests));
}

void Communicator::enter_queue(std::unique_ptr<Task> task,
                               std::vector<std::shared_ptr<Request>> requests) {
  {
    const Lock lock(queue_mutex_);
    queue_.push_back({std::move(task), std::move(requests)});
    if (!has_worker_) {
      worker_ = std::thread([this] { worker(); });
      has_worker_ = true;
    }
  }
  queue_changed_.notify_all();
}

void Communicator::execute(Task& task) {
  const nvtx::Range range([&] { return task.operation(); });
  walk_through(task);
}

void Communicator::walk_through(Task& task, std::uint64_t turns) {
  current_ = &task;
  if (emulation_ != nullptr) emulation_->begin();
  if (!told_.empty()) told_.clear();
  waiter_->restart(turns, team_.moves());
  task.started();
  try {
    while (!task.advance(team_)) waiter_->idle(team_.moves());
  } catch (const Error& error) {
    current_ = nullptr;
    broke(error);
  }
  current_ = nullptr;
  task.completed();
}

void Communicator::write_records() const noexcept {
  const std::string pattern = config_.text(Setting::kTraceFile);
  if (!pattern.empty() && records_.enabled()) write_call_report(*this, pattern);
}

void Communicator::give_back_buffers() noexcept {
  team_.give_up_copy();
  links_->give_back_buffers();
}

void Communicator::seal(const Error& error) {
  failure_.fail(error.code(), error.what());
  bootstrap_->abort(error.what());
}

void Communicator::broke(const Error& error) {
  give_back_buffers();
  // A link that broke says little; the watch over the ranks will soon know who died and how. The
  // system may call the memory of a process that is ending a bad address.
  if ((error.code() == Errc::kPeerLost || error.code() == Errc::kSystem) && !failure_.broken()) {
    const Deadline patience = deadline_after(config_.duration(Setting::kPeerLossTime));
    while (!failure_.broken() && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  if (!failure_.broken()) seal(error);
  links_->take_back_buffers();
  write_records();
  throw failure_.error();
}

void Communicator::drain_queue() {
  // Nothing was ever started: the common case, and worth no lock.
  if (!has_worker_) return;
  Lock lock(queue_mutex_);
  lock.wait_until(
      queue_changed_, kNoDeadline,
      [this]() RW_REQUIRES(queue_mutex_) { return queue_.empty() && !working_; }, kInterruptPeriod,
      [this] {
        if (!interrupted()) return;
        const Error error(Errc::kInterrupted,
                          "rank {} was interrupted by its program while operations that it had "
                          "started were not done",
                          rank());
        seal(error);
        throw error;
      });
}

void Communicator::worker() {
  Lock lock(queue_mutex_);
  while (true) {
    lock.wait(queue_changed_,
              [this]() RW_REQUIRES(queue_mutex_) { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    working_ = true;
    lock.unlock();
    try {
      failure_.check();
      const Lock engine(engine_mutex_);
      execute(*next.task);
      for (const std::shared_ptr<Request>& request : next.requests) request->finish();
    } catch (const Error& error) {
      for (const std::shared_ptr<Request>& request : next.requests) request->fail(error);
    }
    next.task.reset();
    lock.lock();
    working_ = false;
    queue_changed_.notify_all();
  }
}

void Communicator::run_together(std::vector<Work> work) {
  // One waiter over all: the policy of the first, the hooks of all.
  struct Together final : executor::WaitHook {
    std::vector<Work>* work = nullptr;
    bool poll() override {
      bool moved = false;
      for (Work& item : *work) moved |= item.comm->poll();
      return moved;
    }
    void stalled(std::chrono::nanoseconds since_progress) override {
      for (Work& item : *work) item.comm->stalled(since_progress);
    }
  };
  if (work.size() == 1) {
    Communicator& comm = *work.front().comm;
    const Use use(comm);
    comm.drain_queue();
    const Lock lock(comm.engine_mutex_);
    for (const std::unique_ptr<Task>& task : work.front().tasks) comm.execute(*task);
    return;
  }
  std::deque<Use> uses;
  try {
    for (const Work& item : work) uses.emplace_back(*item.comm);
  } catch (const Error& error) {
    // Their tasks are numbered, and will not run.
    for (const Work& item : work) {
      if (!item.comm->belonging_.elsewhere()) item.comm->seal(error);
    }
    throw;
  }
  // Its operations go on in turns: one range for all.
  const nvtx::Range range([] { return std::pair(std::string_view("group"), std::size_t{0}); });
  std::vector<std::unique_lock<Mutex>> locks;
  for (Work& item : work) {
    item.comm->drain_queue();
    locks.emplace_back(item.comm->engine_mutex_);
  }
  for (const Work& item : work) {
    if (item.comm->emulation_ != nullptr) item.comm->emulation_->begin();
  }
  Together hook;
  hook.work = &work;
  executor::Waiter::Policy policy;
  policy.bare_turns = kSharedCoreTurns;
  policy.spin = {};  // the ranks of this thread wait for each other: other processes may too
  executor::Waiter waiter(policy, hook);
  std::vector<std::size_t> next(work.size(), 0);
  try {
    for (bool all_done = false; !all_done;) {
      all_done = true;
      std::uint64_t moves = 0;
      for (std::size_t i = 0; i < work.size(); ++i) {
        Communicator& comm = *work[i].comm;
        while (next[i] < work[i].tasks.size()) {
          Task& task = *work[i].tasks[next[i]];
          if (comm.current_ != &task) {
            comm.told_.clear();
            task.started();
          }
          comm.current_ = &task;
          if (!task.advance(comm.team_)) break;
          comm.current_ = nullptr;
          task.completed();
          ++next[i];
        }
        all_done &= next[i] == work[i].tasks.size();
        moves += comm.team_.moves() + next[i];
      }
      if (!all_done) waiter.idle(moves);
    }
  } catch (const Error& error) {
    for (const Work& item : work) item.comm->give_back_buffers();
    // Every communicator that had not finished is now out of step with its other ranks.
    for (std::size_t i = 0; i < work.size(); ++i) {
      Communicator& comm = *work[i].comm;
      comm.current_ = nullptr;
      if (next[i] == work[i].tasks.size()) continue;
      try {
        comm.broke(error);
      } catch (const Error&) {
      }
    }
    throw;
  }
}

void Communicator::barrier() {
  float nothing = 0;
  run(barrier_call(nothing));
}

// ---- on GPU memory ----------------------------------------------------------------------

namespace {

// A thread for each GPU, which may be awake without a pause, beside the program's own.
constexpr int kProcessorsPerGpu = 4;
bool processors_for_threads() {
  return tune::Processors::usable().count() >= kProcessorsPerGpu * device_count();
}

}  // namespace

void Communicator::attach_device(int device, BlockBounds blocks) {
  const Use use(*this);
  failure_.check();
  drain_queue();
  const Lock lock(engine_mutex_);
  if (device_ != nullptr) {
    throw Error(Errc::kInvalidUsage, "rank {} has GPU {} already", rank(), device_->device());
  }
  if (emulation_ != nullptr) {
    throw Error(Errc::kInvalidUsage,
                "setting ROPEWALK_EMULATE: ranks of an emulated machine work on host memory");
  }
  if (blocks.least == 0) blocks.least = static_cast<int>(config_.integer(Setting::kMinBlocks));
  if (blocks.most == 0) blocks.most = static_cast<int>(config_.integer(Setting::kMaxBlocks));
  if (blocks.cluster == BlockBounds::kUnset) {
    blocks.cluster = static_cast<int>(config_.integer(Setting::kClusterSize));
  }
  if (blocks.copy_engines == CopyEngineUse::kUnset) {
    const std::string& text = config_.text(Setting::kCopyEngines);
    blocks.copy_engines = text == "on"     ? CopyEngineUse::kOn
                          : text == "auto" ? CopyEngineUse::kAuto
                                           : CopyEngineUse::kOff;
  }
  try {
    std::unique_ptr<DeviceGroup> group =
        comm::attach_device(*bootstrap_, config_, runtime_, facts_, rails_of_gpu(device),
                            records_.enabled() ? &traffic_ : nullptr, device, blocks);
    machine_ = machine_on_devices(device);
    device_ = std::move(group);
    device_number_ = device;
    const std::string& threads = config_.text(Setting::kEnqueueThreads);
    helped_by_threads_ = threads == "on" || (threads == "auto" && processors_for_threads());
  } catch (const Error& error) {
    const bool out_of_step = error.code() == Errc::kTimeout || error.code() == Errc::kInterrupted;
    if (out_of_step) broke(error);
    throw;
  }
  // Of GPUs that were found and are joined alike, prices have what was measured.
  const bool plans = machine_->planned != nullptr &&
                     (machine_->described || tune::worth_planning(*machine_->planned));
  device_calls_ = std::make_unique<CallPipeline>(
      device_->tuner(config_, plans ? machine_->planned : nullptr, runtime_.plans()), *device_,
      rank(), size());
  // All ranks know the same machine, and agree on these settings, so all have an agreement or none
  // has.
  const bool in_background =
      plans && size() > 1 && config_.text(Setting::kPlanning) == "background";
  const bool adapts = config_.flag(Setting::kAdaptHybrid) && device_->hybrid_links().channels > 0;
  if ((in_background || adapts) && agreement_ == nullptr) {
    agreement_ = std::make_unique<CallAgreement>(*bootstrap_);
    next_stop_ = calls_ + 1;
  }
  if (config_.text(Setting::kPlanning) == "background" && agreement_ != nullptr) {
    device_calls_->plan_in_background(*agreement_, true);
  }
  if (adapts) {
    device_calls_->adapt_hybrid(*agreement_, device_->hybrid_links());
    if (rank() == 0) {
      device_->time_hybrid([calls = device_calls_.get()](const tune::HybridTimes& times) {
        calls->measured(times);
      });
    }
  }
  for (const auto& [collective, checked] : given_schedules_) device_calls_->use_schedule(checked);
  records_.set_device_times(device_->times());
  device_->set_timeout(timeout_.load(std::memory_order_relaxed));
  failure_.when_broken([group = device_.get()] { group->abort(); });
}

link::Rails Communicator::rails_of_gpu(int device) {
  const link::Rails& rails = links_->to_hosts().rails();
  if (rails.count() < 2 || (machine_ != nullptr && machine_->described)) return rails;
  return machine::rails_near_gpus(*bootstrap_, rails,
                                  machine::nic_positions_near_gpu(device_bus_id(device), nics_),
                                  deadline_of(config_));
}

std::shared_ptr<const machine::Machine> Communicator::machine_on_devices(int device) {
  using Address = std::array<char, 32>;
  std::vector<Address> addresses(static_cast<std::size_t>(size()));
  Address& mine = addresses[static_cast<std::size_t>(rank())];
  device_bus_id(device).copy(mine.data(), mine.size() - 1);
  bootstrap_->all_gather(std::as_writable_bytes(std::span(addresses)), sizeof(Address),
                         deadline_of(config_));
  std::vector<std::string> bus_ids;
  for (const Address& each : addresses) bus_ids.emplace_back(each.data());
  return std::make_shared<const machine::Machine>(
      machine::place(known_machine(), bus_ids, host_of_rank_));
}

void Communicator::look_at_device() {
  if (device_ == nullptr || failure_.broken()) return;
  const std::optional<Error> stopped = device_->stopped();
  if (!stopped.has_value()) return;
  const Lock lock(device_stop_mutex_);
  if (failure_.broken()) return;
  if (stopped->code() != Errc::kTimeout || roll_call_ == nullptr) {
    seal(*stopped);
    return;
  }
  const std::vector<int> left = failure_.left();
  const trace::Waiting waiting =
      waiting_on_device(device_->stopped_in(), records_, rank(), size(), left);
  seal(Error(Errc::kTimeout, "{}{}", stopped->what(), missing(roll_call_->ask(left), waiting)));
}

void Communicator::enqueue(const CollectiveCall& call, DeviceStream stream) {
  const Use use(*this);
  look_at_device();
  failure_.check();
  if (device_ == nullptr) throw Error(Errc::kInvalidUsage, "rank {} has no GPU", rank());
  const nvtx::Range range([&] { return describe_range(call); });
  trace(call, "on a stream");
  before_call();
  PreparedCall& prepared = device_calls_->get(call, calls_ + 1);
  const executor::CallTag tag = tag_of(call, static_cast<std::uint32_t>(calls_ + 1));
  const std::uint64_t scheduled = ticks();
  if (exchanges_in_place(call)) {
    device_->run_copied(prepared, call, tag, stream);
  } else {
    const bool in_place = validate_buffers(call, prepared.extent(), rank()).in_place;
    (void)device_->run(prepared, call, in_place, tag, stream);
  }
  // Only now: a call that was refused leaves this rank in step with the others.
  (void)next_number();
  const std::uint16_t label = device_->last_by_copy_engines()
                                  ? label_of_copies(prepared)
                                  : label_of(prepared, executor::name(prepared.choice().protocol));
  const trace::CallRecords::Id record = records_.begin(operation_of(call), calls_, label, true);
  records_.launched(record, device_->last_launch(), scheduled, stream);
}

void Communicator::enqueue(const std::vector<PointToPointCall>& calls, DeviceStream stream) {
  const Use use(*this);
  look_at_device();
  failure_.check();
  if (device_ == nullptr) throw Error(Errc::kInvalidUsage, "rank {} has no GPU", rank());
  const nvtx::Range range([&] {
    std::size_t bytes = 0;
    for (const PointToPointCall& call : calls) {
      if (call.sends) bytes += call.count * size_of(call.type);
    }
    return std::pair(std::string_view("messages"), bytes);
  });
  for (const PointToPointCall& call : calls) {
    trace(call, "on a stream");
    validate(call, size());
  }
  const std::uint64_t scheduled = ticks();
  const std::vector<DeviceGroup::MessageLaunch> launches = device_->send_and_receive(calls, stream);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::uint16_t label = launches[i].copied ? label_of_copied_messages() : std::uint16_t{0};
    const trace::CallRecords::Id record = records_.begin(operation_of(calls[i]), 0, label, true);
    records_.launched(record, launches[i].launch, scheduled, stream);
  }
}

std::uint16_t Communicator::label_of_copies(PreparedCall& call) {
  std::uint16_t& label = call.record_label(true);
  if (label == 0 && records_.enabled()) {
    label = records_.label_of(kCopyEnginesName, {}, call.copied_bytes());
  }
  return label;
}

std::uint16_t Communicator::label_of_copied_messages() {
  if (copied_messages_label_ == 0 && records_.enabled()) {
    copied_messages_label_ = records_.label_of(kCopyEnginesName);
  }
  return copied_messages_label_;
}

std::uint64_t Communicator::register_buffer(const void* buffer, std::size_t bytes,
                                            link::MappedBuffers mapped, bool symmetric) {
  const Use use(*this);
  look_at_device();
  failure_.check();
  if (device_ == nullptr) {
    throw Error(Errc::kInvalidUsage,
                "rank {} has no GPU, and memory of the host needs no registration", rank());
  }
  drain_queue();
  const Lock lock(engine_mutex_);
  try {
    return device_->register_buffer(buffer, bytes, deadline_of(config_), std::move(mapped),
                                    symmetric);
  } catch (const Error& error) {
    if (error.code() == Errc::kInvalidArgument) throw;  // on all ranks
    // They may be out of step.
    broke(error);
  }
}

void Communicator::deregister_buffer(std::uint64_t number) {
  const Use use(*this);
  if (device_ == nullptr) throw Error(Errc::kInvalidUsage, "rank {} has no GPU", rank());
  drain_queue();
  const Lock lock(engine_mutex_);
  device_->deregister_buffer(number);
}

void Communicator::exchange(std::span<std::byte> all, std::size_t bytes_each) {
  const Use use(*this);
  failure_.check();
  drain_queue();
  const Lock lock(engine_mutex_);
  all_gather(all, bytes_each, deadline_of(config_));
}

std::string Communicator::algorithm_of(const CollectiveCall& call) {
  const Use use(*this);
  drain_queue();
  return host_call(call, calls_ + 1).collective().checked().schedule().algorithm;
}

Communicator::Explained Communicator::explain(const CollectiveCall& call) {
  const Use use(*this);
  failure_.check();
  drain_queue();
  const Lock lock(engine_mutex_);
  CallPipeline& calls = device_calls_ != nullptr ? *device_calls_ : *host_calls_;
  tune::Tuner& tuner = calls.tuner();
  const PreparedCall& prepared = calls.get(call, calls_ + 1);
  const std::size_t unit_bytes = call.count * prepared.extent().element_bytes;
  const tune::Choice& choice = prepared.choice();
  Explained explained{tuner.priced(call.collective, call.root, unit_bytes),
                      choice,
                      choice.schedule->schedule().algorithm,
                      tuner.is_given(call.collective, call.root)    ? "rwCommUseSchedule"
                      : tuner.is_forced(call.collective, call.root) ? "setting ALGORITHM"
                                                                    : "cost model",
                      tuner.background(call.collective, call.root),
                      std::nullopt,
                      std::nullopt,
                      std::nullopt,
                      std::nullopt};
  // Found GPUs are as they were measured, which prices have, and not as their links are described.
  if (const topology::Topology* machine = planned_machine(); machine != nullptr) {
    tuner.add_limits(*machine, call.collective, call.root, explained.candidates);
    tuner.add_limits(*machine, call.collective, call.root, std::span(&explained.choice, 1));
  }
  if (&calls == host_calls_.get()) {
    const auto& host_call = static_cast<const HostCall&>(prepared);
    explained.chunks = host_executor_->chunks_of(host_call, call);
    explained.forms = host_executor_->forms_of(host_call, call);
  }
  if (!explained.background.has_value()) return explained;
  if (explained.background->state == tune::BackgroundPlans::State::kMade) {
    explained.later = tuner.later(call.collective, call.root, unit_bytes);
  }
  const std::uint64_t first = agreement_->first_call(
      {&calls == device_calls_.get(), call.collective, has_root(call.collective) ? call.root : 0});
  if (first != CallAgreement::kNever) explained.first = first;
  return explained;
}

// ---- waiting ----------------------------------------------------------------------------

bool Communicator::poll() {
  failure_.check();
  const bool helped = team_.help();
  return links_->poll() || helped;
}

bool Communicator::sleep(std::chrono::nanoseconds at_most) { return links_->sleep(at_most); }

void Communicator::set_timeout(std::chrono::nanoseconds limit) noexcept {
  const std::chrono::nanoseconds setting = config_.duration(Setting::kTimeout);
  const bool own = limit.count() > 0 && (setting.count() == 0 || limit < setting);
  const std::chrono::nanoseconds for_ever{0};
  timeout_.store(limit.count() < 0 ? for_ever : (own ? limit : setting), std::memory_order_relaxed);
  if (device_ != nullptr) device_->set_timeout(timeout_.load(std::memory_order_relaxed));
}

void Communicator::stalled(std::chrono::nanoseconds since_progress) {
  if (current_ == nullptr) return;
  if (since_progress > kInterruptPeriod) ask_program();
  if (since_progress > kCompareAfter) {
    compare_calls();
    tell_stall(since_progress);
  }
  std::vector<int> waiting;
  if (since_progress > kLeftGrace) {
    const std::vector<int> left = failure_.left();
    if (!left.empty()) {
      waiting = current_->waiting_for(team_);
      for (const int peer : waiting) {
        if (std::find(left.begin(), left.end(), peer) != left.end()) {
          throw Error(Errc::kPeerLost,
                      "rank {} left the communicator while rank {} waited for it in {}", peer,
                      rank(), current_->describe());
        }
      }
    }
  }
  const std::chrono::nanoseconds limit = timeout_.load(std::memory_order_relaxed);
  if (limit.count() > 0 && since_progress > limit) {
    waiting = current_->waiting_for(team_);
    if (team_.sharing_with() >= 0) waiting.push_back(team_.sharing_with());
    make_unique(waiting);
    throw Error(Errc::kTimeout, "{}: nothing moved for {:.3g} s; rank {} waits for {}{}",
                current_->describe(), std::chrono::duration<double>(since_progress).count(), rank(),
                list(waiting), who_is_missing(waiting));
  }
}

std::string Communicator::who_is_missing(const std::vector<int>& waiting_for) {
  if (roll_call_ == nullptr) {
    const std::vector<int> silent = failure_.suspected();
    return silent.empty() ? std::string() : fmt::format("; {} does not respond", list(silent));
  }
  trace::Waiting waiting{rank(), size(), std::nullopt, waiting_for, failure_.left()};
  if (const std::optional<executor::CallTag> tag = current_->tag()) waiting.call = tag->call;
  return missing(roll_call_->ask(waiting.left), waiting);
}

void Communicator::tell_stall(std::chrono::nanoseconds since_progress) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_tell_) return;
  next_tell_ = now + kCompareAfter;
  stall_.tell({current_->waiting_for(team_), current_->describe(),
               std::chrono::duration<double>(since_progress).count()});
}

void Communicator::ask_program() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ask_) return;
  next_ask_ = now + kInterruptPeriod;
  if (!interrupted()) return;
  throw Error(Errc::kInterrupted,
              "{}: rank {} was interrupted by its program while it waited for {}",
              current_->describe(), rank(), list(current_->waiting_for(team_)));
}

void Communicator::compare_calls() {
  const auto now = std::chrono::steady_clock::now();
  if (!check_calls_ || now < next_compare_) return;
  next_compare_ = now + kCompareAfter;
  const std::optional<executor::CallTag> mine = current_->tag();
  const std::vector<int> waiting = current_->waiting_for(team_);
  for (int peer = 0; peer < size(); ++peer) {
    try {
      const bool awaited = std::find(waiting.begin(), waiting.end(), peer) != waiting.end();
      if (mine.has_value() && awaited && told_.insert(peer).second) {
        bootstrap_->send(peer, kCallTag, std::as_bytes(std::span(&*mine, 1)));
      }
      while (const std::optional<std::vector<std::byte>> bytes =
                 bootstrap_->try_recv(peer, kCallTag)) {
        compare_call(peer, *bytes);
      }
    } catch (const Error& error) {
      // Messages that a peer sent before it left may still be in flight, which is all that this
      // call needs; failure_ reports a lost peer.
      if (error.code() != Errc::kPeerLost) throw;
    }
  }
}

void Communicator::compare_call(int peer, std::span<const std::byte> told) {
  executor::CallTag theirs;
  RW_ASSERT(told.size() == sizeof theirs);
  std::memcpy(&theirs, told.data(), sizeof theirs);
  // A call that this rank has not reached yet, or no longer remembers, proves nothing.
  const std::optional<executor::CallTag> same = team_.history().find(theirs.call);
  if (same.has_value() && !(*same == theirs)) {
    throw Error(Errc::kInvalidUsage, "{}",
                executor::describe_difference(rank(), *same, team_.history(), peer, theirs));
  }
}

// ---- windows ----------------------------------------------------------------------------

std::unique_ptr<link::NetworkLinks> Communicator::message_links(
    link::NetworkLinks::Options options) {
  std::unique_ptr<transport::Transport> network =
      transport::make_transport(config_.text(Setting::kNet), transport::for_host_memory(config_));
  if (network->num_devices() == 0) {
    throw Error(Errc::kSystem, "rank {} has no device of the transport {} (setting NET): {}",
                rank(), network->name(), network->why_no_devices());
  }
  auto links =
      std::make_unique<link::NetworkLinks>(*bootstrap_, std::move(network), std::move(options));
  links->spread(links_->to_hosts().rails(), 1);
  if (records_.enabled()) links->count_in(traffic_);
  if (config_.flag(Setting::kNetEncrypt)) links->seal();
  return links;
}

message::Messenger& Communicator::messenger() {
  if (finalized_) {
    throw message::Refused(Errc::kInvalidUsage, "the communicator of rank {} was finalized",
                           rank());
  }
  if (messenger_ != nullptr) return *messenger_;
  if (emulation_ != nullptr) {
    throw message::Refused(Errc::kInvalidUsage,
                           "setting ROPEWALK_EMULATE: an emulated machine has no windows");
  }
  message::Messenger::Options options;
  options.reach = reach_;
  options.backing = parse_shm_backing(config_.text(Setting::kShmBacking));
  options.policy = wait_policy_;
  options.timeout = [this] { return timeout_.load(std::memory_order_relaxed); };
  options.peer_loss_time = config_.duration(Setting::kPeerLossTime);
  options.gpu_of = [this](DeviceStream stream) -> transport::window::Gpu& {
    transport::window::Gpu* const gpu =
        runtime_.gpus().of_stream(static_cast<transport::window::CuStream>(stream));
    if (gpu == nullptr) throw Error(Errc::kInvalidUsage, "it is of no GPU's primary context");
    return *gpu;
  };
  options.stream_kernels = config_.flag(Setting::kStreamKernels);
  options.make_links = [this](link::NetworkLinks::Options its) {
    return message_links(std::move(its));
  };
  options.on_error = [this](const Error& error) { seal(error); };
  messenger_ = std::make_unique<message::Messenger>(*bootstrap_, failure_, std::move(options));
  return *messenger_;
}

template <typename Body>
auto Communicator::with_messenger(Body&& body) {
  const Use use(*this);
  failure_.check();
  try {
    return std::forward<Body>(body)(messenger());
  } catch (const message::Refused&) {
    throw;
  } catch (const Error& error) {
    if (!failure_.broken()) seal(error);
    throw failure_.error();
  }
}

message::Window& Communicator::create_window(message::WindowSpec spec, int device) {
  return *with_messenger([&](message::Messenger& messenger) {
    try {
      if (transport::window::Gpus * gpus; spec.registers && spec.memory != nullptr &&
                                          (gpus = runtime_.loaded_gpus()) != nullptr &&
                                          message::is_on_gpu(gpus->cuda(), spec.memory)) {
        spec.gpus = gpus;
        spec.gpu = transport::window::find_gpu_memory(*gpus, spec.memory, spec.bytes).gpu;
      } else if (device != kHostMemory) {
        spec.gpus = &runtime_.gpus();
        if (device < 0 || device >= spec.gpus->count()) {
          throw Error(Errc::kInvalidArgument, "device: {} is not one of the {} GPUs", device,
                      spec.gpus->count());
        }
        spec.gpu = &spec.gpus->at(device);
      }
    } catch (const Error& error) {
      spec.fault = error;
    }
    return &messenger.create_window(spec, deadline_of(config_));
  });
}

void Communicator::free_window(message::Window& window) {
  with_messenger(
      [&](message::Messenger& messenger) { messenger.free_window(window, deadline_of(config_)); });
}

void Communicator::release_window(message::Window& window) {
  // Also of a communicator that is broken: its memory is about to be freed.
  const Use use(*this);
  messenger_->release_window(window);
}

void Communicator::check(const message::OperationSpec& operation) {
  with_messenger([&](message::Messenger& messenger) { messenger.validate(operation); });
}

void Communicator::run(const message::OperationSpec& operation) {
  with_messenger([&](message::Messenger& messenger) { messenger.run(operation); });
}

namespace {

message::Messenger::Ended ending(std::shared_ptr<Request> request) {
  return [request = std::move(request)](const Error* error) {
    if (error == nullptr) {
      request->finish();
    } else {
      request->fail(*error);
    }
  };
}

}  // namespace

void Communicator::start(const message::OperationSpec& operation,
                         std::shared_ptr<Request> request) {
  with_messenger([&](message::Messenger& messenger) {
    request->let_help(messenger.helping());
    messenger.start(operation, ending(std::move(request)));
  });
}

void Communicator::run_both(const message::OperationSpec& put,
                            const message::OperationSpec& signal) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.validate(signal);
    messenger.run(put);
    messenger.run(signal);
  });
}

void Communicator::start_both(const message::OperationSpec& put,
                              const message::OperationSpec& signal,
                              std::shared_ptr<Request> request) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.validate(signal);
    request->let_help(messenger.helping());
    messenger.start(put, ending(std::move(request)));
    messenger.start(signal, [](const Error*) {});
  });
}

void Communicator::flush(message::Window& window) {
  with_messenger([&](message::Messenger& messenger) { messenger.flush_all(window); });
}

void Communicator::add(message::Batch& batch, const message::OperationSpec& operation) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.validate(operation);
    if (batch.running()) {
      throw message::Refused(Errc::kInvalidUsage,
                             "the batch was launched, and has not ended: it cannot be added to");
    }
    batch.add(operation);
  });
}

void Communicator::run(message::Batch& batch) {
  with_messenger([&](message::Messenger& messenger) { messenger.run(batch); });
}

void Communicator::start(message::Batch& batch, std::shared_ptr<Request> request) {
  with_messenger([&](message::Messenger& messenger) {
    request->let_help(messenger.helping());
    messenger.start(batch, ending(std::move(request)));
  });
}

void Communicator::enqueue(std::span<const message::OperationSpec> operations,
                           DeviceStream stream) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.enqueue(operations, static_cast<transport::window::CuStream>(stream));
  });
}

void Communicator::enqueue(message::Batch& batch, DeviceStream stream) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.enqueue(batch, static_cast<transport::window::CuStream>(stream));
  });
}

message::StreamCalls::Trigger Communicator::arm(const message::Batch& batch, DeviceStream stream) {
  return with_messenger([&](message::Messenger& messenger) {
    return messenger.arm(batch, static_cast<transport::window::CuStream>(stream));
  });
}

void Communicator::enqueue(const message::Messenger::Message& message, DeviceStream stream) {
  with_messenger([&](message::Messenger& messenger) {
    messenger.enqueue(message, static_cast<transport::window::CuStream>(stream));
  });
}

rwDeviceWindow Communicator::device_window(message::Window& window) {
  return with_messenger(
      [&](message::Messenger& messenger) { return messenger.device_window(window); });
}

rwDeviceBatch Communicator::device_batch(message::Batch& batch) {
  return with_messenger(
      [&](message::Messenger& messenger) { return messenger.device_batch(batch); });
}

std::uint64_t Communicator::arrived(message::Window& window, int source, int slot) {
  return with_messenger(
      [&](message::Messenger& messenger) { return messenger.arrived(window, source, slot); });
}

// ---- the end ----------------------------------------------------------------------------

void Communicator::finalize() {
  const Use use(*this);
  if (finalized_) return;
  drain_queue();
  if (messenger_ != nullptr && !failure_.broken()) {
    try {
      messenger_->finish();
    } catch (const Error& error) {
      finalized_ = true;
      if (!failure_.broken()) seal(error);
      throw failure_.error();
    }
  }
  if (failure_.broken()) {
    // The others know already; there is nothing to leave in order.
    finalized_ = true;
    bootstrap_->abort("its communicator failed");
    return;
  }
  const Lock lock(engine_mutex_);
  // A root that only sent has received nothing from the others: chunks with their calls may be
  // unread.
  const bool rooted = team_.history().any_of([](const executor::CallTag& tag) {
    return tag.collective < kNumCollectives && has_root(static_cast<Collective>(tag.collective));
  });
  for (const link::Links::Untaken& chunk : links_->untaken(check_calls_ && rooted)) {
    const std::optional<executor::CallTag> ours = team_.history().find(chunk.tag.call);
    const executor::CallTag theirs = executor::without_note(chunk.tag);
    if (check_calls_ && ours.has_value() && !(*ours == theirs)) {
      finalized_ = true;
      broke(
          Error(Errc::kInvalidUsage, "{}",
                executor::describe_difference(rank(), *ours, team_.history(), chunk.peer, theirs)));
    }
    log::warn("rank {} leaves without having received what rank {} sent it (call {})", rank(),
              chunk.peer, chunk.tag.call);
  }
  if (device_ != nullptr) {
    device_->finish();
    look_at_device();
    device_->say_farewell(*bootstrap_);
  }
  // Not before a device group has waited for the other ranks.
  if (messenger_ != nullptr) messenger_->leave();
  finalized_ = true;
  runtime_.status().remove(*this);
  if (monitored_) runtime_.job_ports().remove(*monitored_);
  runtime_.profiler().remove(records_);
  write_records();
  if (agreement_ != nullptr) agreement_->leave();
  bootstrap_->leave();
}

void Communicator::abort(const std::string& reason) {
  belonging_.require_here("the communicator");
  failure_.fail(Errc::kAborted,
                fmt::format("rank {} aborted its communicator: {}", rank(), reason));
  bootstrap_->abort(reason);
}

}  // namespace ropewalk::comm
