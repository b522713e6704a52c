#include "schedule/symbolic_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "schedule/check_form.h"
#include "schedule/contributions.h"
#include "schedule/layout.h"

namespace ropewalk::schedule {
namespace {

struct Value {
  Contributions contributions;
  bool finished = false;
};

struct Message {
  int block = 0;
  Value value;
  int depth = 0;  // messages on the longest chain up to and including this one
  std::size_t sender = 0;
  std::size_t send_entry = 0;
};

struct Link {
  int source = 0;
  int destination = 0;
  std::vector<Message> queue;  // all of the round; those before `head` were taken
  std::size_t head = 0;
  [[nodiscard]] std::size_t waiting() const { return queue.size() - head; }
};

struct Output {
  Value value;
  std::optional<std::size_t> last_writer;  // step number
};

/// One rank's progress.
struct Strand {
  const StepList* steps = nullptr;
  std::size_t next = 0;
  int depth = 0;
  std::vector<Output> outputs;           // by unit of the output buffer, in parts
  std::optional<std::size_t> waits_for;  // link
  [[nodiscard]] bool done() const { return next == steps->size(); }
};

class Run {
 public:
  Run(const Schedule& schedule, int channel, int slots, Defects& defects)
      : s_(schedule),
        channel_(channel),
        slots_(static_cast<std::size_t>(slots)),
        defects_(defects),
        reduces_(reduces(schedule.collective)) {
    number_nodes_and_links();
  }

  ChannelVerdict verdict() {
    progress();
    if (std::any_of(strands_.begin(), strands_.end(),
                    [](const Strand& strand) { return !strand.done(); })) {
      report_stuck();
    } else {
      report_residue();
      for (int rank = 0; rank < s_.num_ranks; ++rank) check_outputs(rank);
    }
    collect_links();
    return std::move(verdict_);
  }

 private:
  Strand& strand(int rank) { return strands_[static_cast<std::size_t>(rank)]; }

  std::size_t link_id(int source, int destination) {
    const std::uint64_t key =
        static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint32_t>(destination);
    const auto [entry, is_new] = link_ids_.try_emplace(key, links_.size());
    if (is_new) links_.push_back({source, destination, {}, 0});
    return entry->second;
  }

  void number_nodes_and_links() {
    Trace& trace = verdict_.trace;
    strands_.resize(static_cast<std::size_t>(s_.num_ranks));
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      Strand& mine = strand(rank);
      mine.steps = &s_.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel_)];
      const int outputs = output_units(s_.collective, s_.num_ranks, s_.root, rank) * s_.parts;
      mine.outputs.resize(static_cast<std::size_t>(outputs));
      trace.first_node.push_back(trace.first_receive.size());
      for (const Step& step : *mine.steps) {
        trace.first_receive.push_back(receive_links_.size());
        trace.first_send.push_back(send_links_.size());
        for (const Operand& operand : step.operands) {
          if (operand.kind == Operand::Kind::kLink) {
            receive_links_.push_back(link_id(operand.peer, rank));
          }
        }
        for (const int peer : step.send) send_links_.push_back(link_id(rank, peer));
      }
    }
    trace.first_node.push_back(trace.first_receive.size());
    trace.first_receive.push_back(receive_links_.size());
    trace.first_send.push_back(send_links_.size());
    trace.received_from.resize(receive_links_.size());
    trace.sent_to.resize(send_links_.size());
    trace.fired.reserve(trace.first_node.back());
  }

  void progress() {
    std::vector<int> ready;
    for (int rank = s_.num_ranks - 1; rank >= 0; --rank) ready.push_back(rank);
    while (!ready.empty()) {
      const int rank = ready.back();
      ready.pop_back();
      Strand& mine = strand(rank);
      while (!mine.done()) {
        const std::size_t node = node_of(rank);
        mine.waits_for = blocking_link(node);
        if (mine.waits_for) break;
        fire(rank, node);
        wake(node, ready);
        ++mine.next;
      }
    }
  }

  [[nodiscard]] std::size_t node_of(int rank) {
    return verdict_.trace.first_node[static_cast<std::size_t>(rank)] + strand(rank).next;
  }

  /// The first link without a chunk (free slot) for that step.
  std::optional<std::size_t> blocking_link(std::size_t node) {
    const Trace& trace = verdict_.trace;
    for (std::size_t i = trace.first_receive[node]; i < trace.first_receive[node + 1]; ++i) {
      if (links_[receive_links_[i]].waiting() == 0) return receive_links_[i];
    }
    for (std::size_t i = trace.first_send[node]; i < trace.first_send[node + 1]; ++i) {
      if (links_[send_links_[i]].waiting() >= slots_) return send_links_[i];
    }
    return std::nullopt;
  }

  /// Peers that waited for a slot or a chunk of this step's links can go on.
  void wake(std::size_t node, std::vector<int>& ready) {
    const auto wake_one = [&](int rank, std::size_t link) {
      if (strand(rank).waits_for == link) {
        strand(rank).waits_for.reset();
        ready.push_back(rank);
      }
    };
    const Trace& trace = verdict_.trace;
    for (std::size_t i = trace.first_receive[node]; i < trace.first_receive[node + 1]; ++i) {
      wake_one(links_[receive_links_[i]].source, receive_links_[i]);
    }
    for (std::size_t i = trace.first_send[node]; i < trace.first_send[node + 1]; ++i) {
      wake_one(links_[send_links_[i]].destination, send_links_[i]);
    }
  }

  void fire(int rank, std::size_t node) {
    Strand& mine = strand(rank);
    Trace& trace = verdict_.trace;
    const Step& step = (*mine.steps)[mine.next];
    trace.fired.push_back(node);

    Value value;
    bool first_operand = true;
    bool was_finished = false;
    std::size_t receive = trace.first_receive[node];
    for (const Operand& operand : step.operands) {
      Value taken;
      switch (operand.kind) {
        case Operand::Kind::kLink: taken = take(rank, step, receive++, node); break;
        case Operand::Kind::kInput: taken = read_input(rank, step); break;
        case Operand::Kind::kOutput: taken = read_output(rank, step); break;
      }
      was_finished = was_finished || taken.finished;
      if (first_operand) {
        value = std::move(taken);
        first_operand = false;
      } else if (const auto twice = value.contributions.merge(taken.contributions, s_.num_ranks)) {
        complain(Severity::kResult, rank, "takes the contribution of rank {} twice", *twice);
      }
    }
    value.finished = was_finished;
    check_mark(rank, step, was_finished, value);
    if (step.finished) value.finished = true;

    const int depth = mine.depth + 1;
    for (std::size_t i = trace.first_send[node]; i < trace.first_send[node + 1]; ++i) {
      links_[send_links_[i]].queue.push_back({step.block, value, depth, node, i});
      verdict_.longest_path = std::max(verdict_.longest_path, depth);
    }
    if (step.write_output) {
      output(rank, step.block) = {std::move(value), mine.next};
    }
  }

  Value take(int rank, const Step& step, std::size_t receive, std::size_t node) {
    Link& link = links_[receive_links_[receive]];
    Message& message = link.queue[link.head++];
    verdict_.trace.received_from[receive] = message.sender;
    verdict_.trace.sent_to[message.send_entry] = node;
    strand(rank).depth = std::max(strand(rank).depth, message.depth);
    if (message.block != step.block) {
      complain(Severity::kResult, rank, "takes a chunk of block {} that rank {} sent",
               message.block, link.source);
    }
    return std::move(message.value);
  }

  Value read_input(int rank, const Step& step) {
    if (is_aliased(s_, rank, step.block)) {
      // A reduction scales inputs as it reads them and divides finished values, so even its own
      // contribution alone is not the input any more. A copy of the own input is.
      const Output& over = output(rank, step.block);
      if (over.last_writer && (reduces_ || !over.value.contributions.is_only(rank))) {
        verdict_.in_place = false;
      }
    }
    return {Contributions::of(rank), false};
  }

  Value read_output(int rank, const Step& step) {
    const Output& written = output(rank, step.block);
    if (!written.last_writer) {
      complain(Severity::kResult, rank, "reads the output before anything wrote it");
    }
    return written.value;
  }

  Output& output(int rank, int block) {
    const int unit = block / s_.parts;
    const int index = *output_index(s_.collective, s_.num_ranks, s_.root, unit, rank);
    const auto parts = static_cast<std::size_t>(s_.parts);
    return strand(rank)
        .outputs[static_cast<std::size_t>(index) * parts + static_cast<std::size_t>(block) % parts];
  }

  /// `finished` stands where a value first holds all contributions: not earlier, not twice.
  void check_mark(int rank, const Step& step, bool was_finished, const Value& value) {
    if (!reduces_) {
      if (step.finished) {
        complain(Severity::kMark, rank,
                 "marks a value as finished (\"=>\"), but {} does not reduce", name(s_.collective));
      }
      return;
    }
    const bool complete = value.contributions.size() == s_.num_ranks;
    if (step.finished && was_finished) {
      complain(Severity::kMark, rank, "marks a value as finished (\"=>\") that already was");
    } else if (step.finished && !complete) {
      complain(Severity::kMark, rank,
               "marks a value as finished (\"=>\") that lacks the contribution of rank {}",
               *value.contributions.first_missing(s_.num_ranks));
    } else if (!step.finished && complete && !was_finished) {
      complain(Severity::kMark, rank,
               "completes a value without marking it as finished (\"=>\" is needed)");
    }
  }

  void report_stuck() {
    std::size_t stuck = 0;
    for (const Strand& strand : strands_) stuck += strand.done() ? 0 : 1;
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      const Strand& mine = strand(rank);
      if (mine.done() || defects_.full(Severity::kDeadlock)) continue;
      const Link& link = links_[*mine.waits_for];
      const bool receives = link.destination == rank;
      const int peer = receives ? link.source : link.destination;
      const char* state = strand(peer).done() ? ", which has finished" : "";
      defects_.add(
          Severity::kDeadlock,
          fmt::format("deadlock ({} of {} ranks stuck): {} waits for {} rank {}{}", stuck,
                      s_.num_ranks, step_name(rank, channel_, mine.next, (*mine.steps)[mine.next]),
                      receives ? "a chunk from" : "a free slot to", peer, state));
    }
  }

  void report_residue() {
    for (const Link& link : links_) {
      if (link.waiting() == 0) continue;
      const Message& first = link.queue[link.head];
      const std::size_t step =
          first.sender - verdict_.trace.first_node[static_cast<std::size_t>(link.source)];
      defects_.add(
          Severity::kResidue,
          fmt::format("{} sends a chunk that rank {} never takes ({} left on that link)",
                      step_name(link.source, channel_, step, (*strand(link.source).steps)[step]),
                      link.destination, link.waiting()));
    }
  }

  void check_outputs(int rank) {
    const Strand& mine = strand(rank);
    std::vector<bool> seen(mine.outputs.size());
    // By the steps that wrote them, to know each output's block.
    for (const Step& step : *mine.steps) {
      if (!step.write_output || defects_.full(Severity::kResult)) continue;
      const Output& written = output(rank, step.block);
      const auto index = static_cast<std::size_t>(&written - mine.outputs.data());
      if (seen[index]) continue;
      seen[index] = true;
      const auto wrong = wrong_output(step.block, written.value);
      if (!wrong) continue;
      defects_.add(Severity::kResult, fmt::format("{}: the output of block {} {}",
                                                  step_name(rank, channel_, *written.last_writer,
                                                            (*mine.steps)[*written.last_writer]),
                                                  step.block, *wrong));
    }
  }

  std::optional<std::string> wrong_output(int block, const Value& value) const {
    if (reduces_) {
      if (const auto missing = value.contributions.first_missing(s_.num_ranks)) {
        return fmt::format("lacks the contribution of rank {}", *missing);
      }
      return std::nullopt;
    }
    const int wanted = *contributor(s_.collective, s_.num_ranks, s_.root, block / s_.parts);
    if (value.contributions.is_only(wanted)) return std::nullopt;
    const auto found = value.contributions.first();
    return found ? fmt::format("holds the data of rank {}, not of rank {}", *found, wanted)
                 : fmt::format("holds nothing, not the data of rank {}", wanted);
  }

  template <typename... Args>
  void complain(Severity severity, int rank, fmt::format_string<Args...> format, Args&&... args) {
    if (defects_.full(severity)) return;
    const Strand& mine = strand(rank);
    defects_.add(
        severity,
        fmt::format("{}: {}", step_name(rank, channel_, mine.next, (*mine.steps)[mine.next]),
                    fmt::format(format, std::forward<Args>(args)...)));
  }

  void collect_links() {
    for (const Link& link : links_) {
      verdict_.links.push_back(
          {channel_, link.source, link.destination, static_cast<int>(link.queue.size())});
    }
    std::sort(verdict_.links.begin(), verdict_.links.end(),
              [](const LinkLoad& a, const LinkLoad& b) {
                return std::tie(a.source, a.destination) < std::tie(b.source, b.destination);
              });
  }

  const Schedule& s_;
  int channel_;
  std::size_t slots_;
  Defects& defects_;
  bool reduces_;
  std::vector<Strand> strands_;
  std::vector<Link> links_;
  std::unordered_map<std::uint64_t, std::size_t> link_ids_;
  std::vector<std::size_t> receive_links_;  // as Trace::received_from
  std::vector<std::size_t> send_links_;     // as Trace::sent_to
  ChannelVerdict verdict_;
};

}  // namespace

ChannelVerdict run_symbolically(const Schedule& schedule, int channel, int slots,
                                Defects& defects) {
  return Run(schedule, channel, slots, defects).verdict();
}

bool is_aliased(const Schedule& schedule, int rank, int block) noexcept {
  const int unit = block / schedule.parts;
  const auto offset = in_place_input_offset(schedule.collective, rank);
  const auto input =
      input_index(schedule.collective, schedule.num_ranks, schedule.root, unit, rank);
  const auto output =
      output_index(schedule.collective, schedule.num_ranks, schedule.root, unit, rank);
  return offset && input && output && *input + *offset == *output;
}

}  // namespace ropewalk::schedule
