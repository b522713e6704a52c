#include "diagnose/measured_rank.h"

#include <algorithm>

#include "schedule/layout.h"
#include "schedule/pattern.h"

namespace ropewalk::diagnose {
namespace {

constexpr std::size_t kLineBytes = 64;

std::size_t unit_bytes(const MeasureSpec& spec) { return spec.count * size_of(spec.type); }

// Bytes of `units_of` a call: schedule::input_units or schedule::output_units.
std::size_t bytes_of(const auto& units_of, const MeasureSpec& spec, int root,
                     comm::Communicator& comm) {
  return unit_bytes(spec) *
         static_cast<std::size_t>(units_of(spec.collective, comm.size(), root, comm.rank()));
}

schedule::TestPattern pattern_of(const MeasureSpec& spec, int root, int num_ranks) {
  return {spec.collective, spec.type, spec.op, num_ranks, root, spec.count};
}

}  // namespace

MeasuredRank::MeasuredRank(comm::Communicator& comm, const MeasureSpec& spec)
    : comm_(comm), spec_(spec), site_(spec.on_device ? device_site(comm) : host_site(comm)) {
  std::vector<int> roots{std::max(0, spec.root)};
  if (has_root(spec.collective) && spec.root < 0) {
    for (int root = 1; root < comm.size(); ++root) roots.push_back(root);
  }
  // With changing roots every rank needs room for the largest part.
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  for (const int root : roots) {
    inputs = std::max(inputs, bytes_of(schedule::input_units, spec, root, comm));
    outputs = std::max(outputs, bytes_of(schedule::output_units, spec, root, comm));
  }
  stride_ = (std::max(inputs, outputs) + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (stride_ > 0 && spec.region > stride_) last_shift_ = (spec.region / stride_ - 1) * stride_;
  const std::size_t offset = spec.unalign * size_of(spec.type);
  std::byte* output = nullptr;
  if (spec.in_place) {
    inputs_ = output = site_->take(last_shift_ + stride_, offset);
  } else {
    inputs_ = site_->take(last_shift_ + stride_, offset);
    output = site_->take(last_shift_ + outputs, offset);
  }
  for (const int root : roots) turns_.push_back(turn_of(root, inputs_, output));
}

MeasuredRank::Turn MeasuredRank::turn_of(int root, std::byte* input, std::byte* output) const {
  const int n = comm_.size();
  const int rank = comm_.rank();
  if (spec_.in_place) {
    // The smaller of input and output is the rank's own block of the larger.
    const int offset = *schedule::in_place_input_offset(spec_.collective, rank);
    const int inputs = schedule::input_units(spec_.collective, n, root, rank);
    const int outputs = schedule::output_units(spec_.collective, n, root, rank);
    if (outputs > inputs && outputs == n) {
      input += unit_bytes(spec_) * static_cast<std::size_t>(std::max(0, offset));
    } else if (inputs > outputs && inputs == n) {
      output += unit_bytes(spec_) * static_cast<std::size_t>(std::max(0, -offset));
    }
  }
  comm::CollectiveCall call;
  call.collective = spec_.collective;
  call.input = input;
  call.output = output;
  call.count = spec_.count;
  call.type = spec_.type;
  call.op = spec_.op;
  call.scalar = pattern_of(spec_, root, n).scalar(rank);
  call.root = root;
  return {call, input, output};
}

void MeasuredRank::fill_all() {
  fill(0);
  site_->repeat(inputs_, stride_, last_shift_ + stride_);
}

void MeasuredRank::fill(std::size_t turn) {
  const int root = call(turn).root;
  std::vector<std::byte> input(bytes_of(schedule::input_units, spec_, root, comm_));
  pattern_of(spec_, root, comm_.size()).fill_input(comm_.rank(), input.data());
  site_->write(turns_[turn].input + shift_, input);
}

void MeasuredRank::spoil(std::size_t turn) {
  const std::size_t bytes = bytes_of(schedule::output_units, spec_, call(turn).root, comm_);
  site_->write(turns_[turn].output + shift_, std::vector<std::byte>(bytes, std::byte{0x5a}));
}

std::uint64_t MeasuredRank::count_wrong(std::size_t turn) {
  const int root = call(turn).root;
  std::vector<std::byte> output(bytes_of(schedule::output_units, spec_, root, comm_));
  site_->read(output, turns_[turn].output + shift_);
  return pattern_of(spec_, root, comm_.size()).count_wrong(comm_.rank(), output.data());
}

}  // namespace ropewalk::diagnose
