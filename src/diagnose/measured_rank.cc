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

// The rank whose output is whole where others' repeat.
int whole_rank(const MeasureSpec& spec) {
  return spec.collective == Collective::kReduce ? spec.root : 0;
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
  if (spec.period > 0 && unit_bytes(spec) > spec.period && unit_bytes(spec) % spec.period == 0) {
    period_ = spec.period;
    last_shift_ = 0;
    inputs_ = site_->take_repeated(stride_, period_);
    output = comm.rank() == whole_rank(spec) ? site_->take(stride_, 0)
                                             : site_->take_repeated(stride_, period_);
  } else if (spec.in_place) {
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
  call.scalar = pattern(root).scalar(rank);
  call.root = root;
  return {call, input, output};
}

schedule::TestPattern MeasuredRank::pattern(int root) const {
  const std::size_t count = period_ > 0 ? period_ / size_of(spec_.type) : spec_.count;
  return {spec_.collective, spec_.type, spec_.op, comm_.size(), root, count};
}

void MeasuredRank::fill_all() {
  fill(0);
  if (period_ == 0) site_->repeat(inputs_, stride_, last_shift_ + stride_);
}

void MeasuredRank::fill(std::size_t turn) {
  const int root = call(turn).root;
  const std::size_t whole = bytes_of(schedule::input_units, spec_, root, comm_);
  std::vector<std::byte> input(period_ > 0 ? std::min(whole, period_) : whole);
  if (input.empty()) return;
  pattern(root).fill_input(comm_.rank(), input.data());
  site_->write(turns_[turn].input + shift_, input);
}

void MeasuredRank::spoil(std::size_t turn) {
  const std::size_t whole = bytes_of(schedule::output_units, spec_, call(turn).root, comm_);
  const std::size_t piece = period_ > 0 ? std::min(whole, period_) : whole;
  const std::vector<std::byte> nothing(piece, std::byte{0x5a});
  for (std::size_t done = 0; done < whole; done += piece) {
    site_->write(turns_[turn].output + shift_ + done, nothing);
  }
}

std::uint64_t MeasuredRank::count_wrong(std::size_t turn) {
  const int root = call(turn).root;
  const std::size_t whole = bytes_of(schedule::output_units, spec_, root, comm_);
  if (period_ == 0 || whole == 0) {
    std::vector<std::byte> output(whole);
    site_->read(output, turns_[turn].output + shift_);
    return pattern(root).count_wrong(comm_.rank(), output.data());
  }
  // A period that repeats shows the same each time; looking once is enough.
  const std::size_t shown = comm_.rank() == whole_rank(spec_) ? whole : period_;
  std::uint64_t wrong = 0;
  for (std::size_t done = 0; done < shown; done += period_) {
    wrong += pattern(root).count_wrong(comm_.rank(), turns_[turn].output + done);
  }
  return wrong;
}

}  // namespace ropewalk::diagnose
