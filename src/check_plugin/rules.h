// The rules of the interface, as data: what each one is, and the function that checks it.
//
// What callers rely on is NCCL's own code: `where` names the files and functions of NCCL (releases
// 2.8 to 2.30) whose behaviour the rule follows.
#pragma once

#include <span>
#include <string_view>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

struct Rule {
  std::string_view id;      ///< a word for files and command lines: "zero-bytes"
  std::string_view title;   ///< what a plugin that obeys it does
  std::string_view relies;  ///< what in NCCL would go wrong otherwise
  std::string_view where;   ///< in NCCL's sources
  std::string_view needs;   ///< the rule without which this one says nothing; empty: none
  int processes;            ///< 1, or 2: the sending and the receiving child
  int time_factor;          ///< how many of the usual limits it may take
  void (*check)(Session&);  ///< run by each child; throws Failed or Skipped
  /// The rule with which this one starts, running beside it and later ones, since it mostly sleeps;
  /// its outcome is reported in its turn. Empty: none.
  std::string_view beside = {};
  /// A rule that need not pass; but only if it does this one goes so far (Options::connects).
  std::string_view prefers = {};
};

/// All, in the order in which they are checked: a rule comes after the one that it needs.
std::span<const Rule> rules();

// By subject; rules() joins them.
std::span<const Rule> loading_rules();
std::span<const Rule> connecting_rules();
std::span<const Rule> life_cycle_rules();  ///< they need connections
std::span<const Rule> registration_rules();
std::span<const Rule> transfer_rules();
std::span<const Rule> ordering_rules();
std::span<const Rule> thread_rules();
std::span<const Rule> closing_rules();
std::span<const Rule> gpu_rules();
std::span<const Rule> program_rules();  ///< what a plugin does to the program that loads it

}  // namespace ropewalk::check_plugin
