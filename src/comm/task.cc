#include "comm/task.h"

#include <algorithm>

#include "comm/communicator.h"
#include "core/error.h"

namespace ropewalk::comm {

bool CollectiveTask::begin() {
  if (armed_) return true;
  HostExecutor& executor = comm_.host_executor();
  HostCall& call = executor.in_form(comm_.host_call(call_, number_), call_);
  prepared_ = &call.collective();
  record_label(comm_.label_of(call));
  if (!prepared_->connect(comm_.links())) return false;
  comm_.forget_last();
  executor.arm(call, call_, in_place_, tag_);
  if (const std::size_t chunk = executor.tuned_chunk_bytes(); chunk > 0) record_chunk(chunk);
  set_armed();
  return true;
}

void CollectiveTask::set_armed() {
  if (prepared_->strands().size() > 1) strand_done_.assign(prepared_->strands().size(), false);
  armed_ = true;
}

bool CollectiveTask::advance(executor::HostTeam& team) {
  if (call_.count == 0) {
    // No rank sends anything, so none waits for links: a rank that has its own might leave before
    // its peers have theirs, which takes both.
    if (!armed_) team.history().record(tag_);
    armed_ = true;
    return true;
  }
  if (!begin()) return false;
  std::vector<executor::Strand>& strands = prepared_->strands();
  if (strands.size() == 1) {
    if (!executor::walk(team, strands.front(), prepared_->call())) return false;
    comm_.host_executor().completed();
    return true;
  }
  for (std::size_t s = 0; s < strands.size(); ++s) {
    if (strand_done_[s]) continue;
    if (executor::walk(team, strands[s], prepared_->call())) {
      strand_done_[s] = true;
      ++done_;
    }
  }
  if (done_ < strands.size()) return false;
  comm_.host_executor().completed();
  return true;
}

std::vector<int> CollectiveTask::waiting_for(const executor::HostTeam& team) {
  if (prepared_ == nullptr) return {};
  std::vector<int> peers;
  for (executor::Strand& strand : prepared_->strands()) {
    if (!armed_) {
      for (std::size_t k = 0; k < strand.sends.size(); ++k) {
        if (strand.sends[k] == nullptr) peers.push_back(strand.program->send_peers[k]);
      }
      for (std::size_t k = 0; k < strand.receives.size(); ++k) {
        if (strand.receives[k] == nullptr) peers.push_back(strand.program->receive_peers[k]);
      }
      continue;
    }
    const std::vector<int> more = blocking_peers(strand, prepared_->call(), team);
    peers.insert(peers.end(), more.begin(), more.end());
  }
  return peers;
}

std::string CollectiveTask::describe() const {
  if (call_.carried == CarriedType::kNothing) return "barrier";
  return fmt::format("{} of {}", name(call_.collective),
                     describe_elements(call_.count, call_.type, call_.carried));
}

PointToPointTask::PointToPointTask(Communicator& comm, std::vector<PointToPointCall> calls)
    : comm_(comm), items_(calls.size()) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    items_[i].call = calls[i];
    sends_ |= calls[i].sends;
    for (std::size_t before = i; before-- > 0;) {
      if (calls[before].peer == calls[i].peer && calls[before].sends == calls[i].sends) {
        items_[i].after = static_cast<int>(before);
        break;
      }
    }
  }
}

bool PointToPointTask::start(Item& item) {
  static const executor::Program kSend = executor::make_send_program();
  static const executor::Program kReceive = executor::make_receive_program();
  const PointToPointCall& call = item.call;
  const int channel = comm_.point_to_point_channel();
  executor::Strand& strand = item.strand;
  if (call.sends) {
    executor::SendEnd* end = comm_.links().send_end(channel, call.peer);
    if (end == nullptr) return false;
    strand.program = &kSend;
    strand.sends = {end};
  } else {
    executor::ReceiveEnd* end = comm_.links().receive_end(channel, call.peer);
    if (end == nullptr) return false;
    strand.program = &kReceive;
    strand.receives = {end};
  }
  strand.sources.resize(1);
  strand.destinations.resize(2);
  executor::Call& walker_call = item.walker_call;
  walker_call.input = static_cast<const std::byte*>(call.input);
  walker_call.output = static_cast<std::byte*>(call.output);
  walker_call.count = call.count;
  walker_call.type = call.type;
  walker_call.element_bytes = size_of(call.type);
  walker_call.check_tags = comm_.check_calls();
  const tune::Choice& choice = comm_.message_choice();
  walker_call.tag = tag_of(call);
  if (!sends_) walker_call.share_bytes = choice.share_bytes;
  std::size_t chunk_bytes = choice.chunk_bytes;
  walker_call.address_bytes = choice.address_bytes;
  if (choice.address_chunk_bytes > chunk_bytes) {
    chunk_bytes = choice.address_chunk_bytes;
    walker_call.address_bytes = std::min(choice.address_bytes, choice.chunk_bytes);
  }
  strand.length = call.count;
  strand.part_length = call.count;
  strand.chunk_length = std::max<std::size_t>(1, chunk_bytes / walker_call.element_bytes);
  strand.rounds = (call.count + strand.chunk_length - 1) / strand.chunk_length;
  item.started = true;
  return true;
}

bool PointToPointTask::advance(executor::HostTeam& team) {
  // Links first, all of them, receiving ends before sending ones (links.h).
  bool all_started = true;
  for (const bool sends : {false, true}) {
    for (Item& item : items_) {
      if (item.call.sends == sends && !item.started) all_started &= start(item);
    }
  }
  bool all_done = all_started;
  for (Item& item : items_) {
    if (item.done) continue;
    const bool blocked = item.after >= 0 && !items_[static_cast<std::size_t>(item.after)].done;
    if (item.started && !blocked) item.done = executor::walk(team, item.strand, item.walker_call);
    all_done &= item.done;
  }
  return all_done;
}

std::vector<int> PointToPointTask::waiting_for(const executor::HostTeam& /*team*/) {
  std::vector<int> peers;
  for (const Item& item : items_) {
    if (!item.done) peers.push_back(item.call.peer);
  }
  return peers;
}

std::string PointToPointTask::describe() const {
  if (items_.size() == 1) {
    const PointToPointCall& call = items_.front().call;
    return fmt::format("{} {} {} rank {}", call.sends ? "send of" : "receive of",
                       describe_elements(call.count, call.type, call.carried),
                       call.sends ? "to" : "from", call.peer);
  }
  return fmt::format("group of {} sends and receives", items_.size());
}

std::pair<std::string_view, std::size_t> PointToPointTask::operation() const {
  std::size_t bytes = 0;
  for (const Item& item : items_) {
    if (item.call.sends) bytes += item.call.count * size_of(item.call.type);
  }
  return {"messages", bytes};
}

std::vector<int> blocking_peers(executor::Strand& strand, const executor::Call& call,
                                const executor::HostTeam& team) {
  std::vector<int> peers;
  const executor::Program& program = *strand.program;
  if (strand.turn < strand.rounds + strand.last_lag && strand.step < program.steps.size()) {
    const executor::StepRecord& step = program.steps[strand.step];
    for (std::uint32_t k = 0; k < step.num_operands; ++k) {
      const std::int32_t operand = program.operands[step.first_operand + k];
      if (operand < 0) continue;
      executor::ReceiveEnd& link = *strand.receives[static_cast<std::size_t>(operand)];
      if (!team.wait_arrival(link, 0)) peers.push_back(link.peer);
    }
    for (std::uint32_t k = 0; k < step.num_sends; ++k) {
      executor::SendEnd& link = *strand.sends[program.sends[step.first_send + k].end];
      const executor::Slice slice = executor::slice_of(strand, step.part, strand.turn - step.lag);
      const std::size_t bytes = slice.count * call.element_bytes;
      if (team.wait_room(link, bytes)) continue;
      const std::vector<int> others = team.other_readers(link);
      peers.insert(peers.end(), others.begin(), others.end());
      if (others.empty()) peers.push_back(link.peer);
    }
  } else {
    for (executor::SendEnd* link : strand.sends) {
      if (link->drain_to != 0 && !team.wait_consumed(*link, link->drain_to)) {
        peers.push_back(link->peer);
      }
    }
  }
  return peers;
}

}  // namespace ropewalk::comm
