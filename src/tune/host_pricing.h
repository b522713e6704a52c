// Candidates over links in host memory or over a network: by the cost model (cost_model.h), or by
// walks over the links of a machine that is known (machine_cost.h).
#pragma once

#include "core/settings.h"
#include "tune/cost_model.h"
#include "tune/group_facts.h"
#include "tune/pricing.h"

namespace ropewalk::tune {

class HostPricing final : public Pricing {
 public:
  HostPricing(const Config& config, const GroupFacts& facts, const MachineConstants& constants);

  [[nodiscard]] Choice price(const Candidate& candidate, std::size_t unit_bytes) const override;
  [[nodiscard]] double least(const Candidate& candidate, std::size_t unit_bytes) const override;
  [[nodiscard]] Choice message(std::size_t bytes) const override;
  [[nodiscard]] bool shared_by_sizes() const noexcept override { return true; }
  /// The time that a message takes at each of its ends, in addition to the time on links.
  [[nodiscard]] double message_seconds() const noexcept;

 private:
  // Where NICs take so much.
  [[nodiscard]] Choice priced(const Candidate& candidate, std::size_t unit_bytes,
                              const NicRounds& nics) const;
  void set_chunks(Choice& choice) const;
  /// The share of the time through slots that a transfer of `bytes` by address must stay below.
  [[nodiscard]] double worth_of(std::size_t bytes) const noexcept;
  /// Whether a staged chunk of this size is sooner read by its address, where the schedule lets
  /// only some of the chunks go so.
  [[nodiscard]] bool address_pays(std::size_t chunk) const noexcept;
  /// One of several ranks receives all that is moved, and combines nothing.
  [[nodiscard]] bool has_one_receiver(const ScheduleShape& shape) const noexcept;
  /// A root that gives addresses would wait for readers that wait for its core.
  [[nodiscard]] bool root_waits(const ScheduleShape& shape, std::size_t unit_bytes) const noexcept;

  GroupFacts facts_;
  CostContext context_;
  bool given_address_bytes_ = false;  // by the user
  std::size_t address_bytes_ = 0;
  bool adapts_ = false;  // choices have their other form
};

}  // namespace ropewalk::tune
