# Labels of unit tests, by which `make asan` and `make tsan` leave tests out (dev/run-sanitized), and `make test`
# (dev/run-tests). Each has its reason beside it, and .ci/run prints both. There is no other list of exceptions.
#
# thorough:         takes `make test` longer than a change to most of the code is worth; `make test TESTS=all`, as CI
#                   calls it, runs it
# slow:             takes a sanitizer minutes that other tests of the same code do not need
# sanitizer-blind:  the sanitizer of this build cannot see what the test checks
#
# rw_label_tests(LABELS PROGRAM REGEX REASON [SANITIZER name]): tests of PROGRAM whose name in ctest REGEX
# matches. In builds with a sanitizer they have the labels other than `thorough`, with SANITIZER only in those with
# that one (address or thread); in builds without, `thorough` alone. With the regex "." the program is not built
# there, except as a named target.
# rw_schedule_tests(PROGRAM REGEX [ARITHMETIC] [OWN_PROCESS] [COST seconds]): how dev/unit_tests.py runs those tests in any build
# (cmake/test_schedule.cmake).
# rw_discover_tests(TARGET property...): gtest_discover_tests, and the labels.
# rw_label_plain_test(TEST PROGRAM): the labels for a test without GoogleTest.
set(rw_labels_file ${PROJECT_BINARY_DIR}/test_labels.txt)
file(WRITE ${rw_labels_file} "")

function(rw_label_tests labels program regex reason)
  cmake_parse_arguments(WHERE "" "SANITIZER" "" ${ARGN})
  set(label ${labels})
  if(NOT RW_SANITIZE)
    list(FILTER label INCLUDE REGEX "^thorough$")
  else()
    list(REMOVE_ITEM label thorough)
  endif()
  if(NOT label OR (WHERE_SANITIZER AND NOT RW_SANITIZE MATCHES "${WHERE_SANITIZER}"))
    return()
  endif()
  file(APPEND ${rw_labels_file} "${label}\t${program}\t${regex}\t${reason}\n")
  set_property(GLOBAL APPEND_STRING PROPERTY rw_labels_${program} "  if(test MATCHES [==[${regex}]==])
    list(APPEND labels ${label})
  endif()
")
  if(regex STREQUAL ".")
    set_property(GLOBAL APPEND PROPERTY rw_all_${program} ${label})
  endif()
endfunction()

function(rw_schedule_tests program regex)
  cmake_parse_arguments(TESTS "ARITHMETIC;OWN_PROCESS" "COST" "" ${ARGN})
  set(facts)
  if(TESTS_ARITHMETIC)
    string(APPEND facts "    list(APPEND labels arithmetic)\n")
  endif()
  if(TESTS_OWN_PROCESS)
    string(APPEND facts "    list(APPEND labels own_process)\n")
  endif()
  if(TESTS_COST)
    string(APPEND facts "    set(cost ${TESTS_COST})\n")
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY rw_labels_${program} "  if(test MATCHES [==[${regex}]==])
${facts}  endif()
")
endfunction()

function(rw_discover_tests target)
  set(properties ${ARGN})
  # Sanitized programs take several times as long, and a slow machine as much again: tests that wait for threads that
  # seldom run took more than their limit there.
  list(FIND properties TIMEOUT name)
  if(RW_SANITIZE AND NOT name EQUAL -1)
    math(EXPR value "${name} + 1")
    list(GET properties ${value} seconds)
    math(EXPR seconds "3 * ${seconds}")
    list(REMOVE_AT properties ${value})
    list(INSERT properties ${value} ${seconds})
  endif()
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
  get_property(labels GLOBAL PROPERTY rw_labels_${target})
  if(NOT labels)
    return()
  endif()
  # ctest reads this after the list of the program's tests, or after the placeholder for a program that is not built.
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
  file(WRITE ${file} "foreach(test IN LISTS ${target}_TESTS)
  set(labels)
  set(cost)
${labels}  if(labels)
    set_tests_properties(\"\${test}\" PROPERTIES LABELS \"\${labels}\")
  endif()
  if(cost)
    set_tests_properties(\"\${test}\" PROPERTIES COST \"\${cost}\")
  endif()
endforeach()
")
  get_property(all GLOBAL PROPERTY rw_all_${target})
  if(all)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    file(APPEND ${file} "if(NOT ${target}_TESTS)
  set_tests_properties(${target}_NOT_BUILT PROPERTIES LABELS \"${all}\")
endif()
")
  endif()
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

function(rw_label_plain_test test program)
  get_property(all GLOBAL PROPERTY rw_all_${program})
  if(all)
    set_tests_properties(${test} PROPERTIES LABELS "${all}")
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

rw_label_tests("slow;thorough" plan_test "SmallGraphs.AllUndirectedOnesOfFiveGpus"
  "18 s without a sanitizer; the graphs of three and four GPUs run")
rw_label_tests(slow plan_test "ExpectedBounds.*/(dgx2|dgx_[ah]100_x2|mi250_(16gcd|8gcd_x2))"
  "plans of 16 GPUs and more, seconds without a sanitizer; those of up to 8 run")
rw_label_tests(slow schedule_test
  "Recorded/(Simulated)?Machines.*/(dgx2|dgx_[ah]100_x2|mi250_(16gcd|8gcd_x2)|forestcoll)"
  "schedules of 16 GPUs and more, seconds without a sanitizer; those of up to 8 run")
rw_label_tests(slow schedule_test "Recorded/SimulatedMachines.*/(dgx|mi250)"
  "large messages over many links, seconds without a sanitizer; those of other machines run")
rw_label_tests(slow schedule_test "Simulate.AThousandRanksBroadcast"
  "3 s without a sanitizer; fewer ranks run")

rw_label_tests(slow schedule_test "Reach.TreesOfRandomPlansTellAllToo"
  "27 s under the address sanitizer; all registered algorithms run")
rw_label_tests(slow tune_test "NicRules.UnequalNicsArePricedBalancedAndByTheLeastUsed"
  "52 s under the address sanitizer, pricing plans of eight ranks; the other rules run")

rw_label_tests("slow;thorough" hosts_test
  "HostsOfSeveralNics.(ChannelsAreSpread|OneThatVanishes|APlanNames|UnaskedTheCheapest)"
  "34 to 66 s each with no other test beside it; other tests of several NICs run")

rw_label_tests(slow executor_test "^Limits\\."
  "loops that measure the machine's memory, for minutes; what they share with others runs")

rw_label_tests(sanitizer-blind core_test "ProcessMemory.LengthsBeyondOneCallOfTheKernel"
  "the kernel copies 2.5 GiB between two processes" SANITIZER thread)
rw_label_tests(sanitizer-blind plan_test "." "arithmetic of one thread" SANITIZER thread)
rw_label_tests(sanitizer-blind schedule_test "." "arithmetic of one thread" SANITIZER thread)
foreach(program algorithms_test auto_test culprits_test faults_test hosts_test machines_test windows_test
    device_windows_test)
  rw_label_tests(sanitizer-blind ${program} "."
    "ranks are processes; it sees races between threads of one" SANITIZER thread)
endforeach()
rw_label_tests(sanitizer-blind gpu_messages "." "two processes of one thread" SANITIZER thread)
rw_label_tests(sanitizer-blind transport_test "KilledPeer|BetweenProcesses|Psm2FlowControl"
  "two processes; it sees races between threads of one" SANITIZER thread)
rw_label_tests(sanitizer-blind transport_test "^Sisci\\.|SisciGpu|Faults/Replaced"
  "the software libsisci writes memory as a PCIe bridge does, whenever it likes" SANITIZER thread)
foreach(program software_sisci_test fault_table)
  rw_label_tests(sanitizer-blind ${program} "."
    "the software libsisci writes memory as a PCIe bridge does, whenever it likes" SANITIZER thread)
endforeach()

rw_label_tests(slow plan_test "DriverHops.EveryRecordedMachine"
  "all recorded machines, two minutes; the file's tests of single machines run")
rw_label_tests(slow plan_test "PackedIsNearWithFewTrees/(dgx1[pv]_all|forestcoll|dgx_[ah]100)"
  "12 to 32 s each; smaller machines run")
rw_label_tests(slow tune_test
  "PlannedChoice.(IsTheCheapest|EveryRank|SchedulesKeep|RootedCollectives|LongMessages)"
  "plans of whole machines, 16 to 84 s each; shorter tests of the same choice run")
rw_label_tests(slow tune_test "PlannedCandidates.(AllNames|LargeAllocations|EachChannel)"
  "plans of whole machines, 14 to 19 s each; other planned candidates run")
rw_label_tests(slow tune_test "KeptPlansTest.ThoroughPlans"
  "66 s; BackgroundPlans in comm_test plans in the background, too")
rw_label_tests(slow tune_test "AgainstTheSimulator"
  "plays schedules of whole machines; the simulator's own tests run")
rw_label_tests(slow tune_test "MachineConstantsTest.(OddTimes|Nonsense)"
  "measures the machine's memory anew, 17 s each; other tests of the file run")
rw_label_tests(slow schedule_test "SimulatedMachines.LargeMessages.*/(rccl|pcie_8gpu)"
  "large messages over many links, 7 to 14 s each; those of other machines run")
rw_label_tests(slow schedule_test "Compile.ManyRanks|Lags.EveryPlanComputesTheSame"
  "9 to 11 s each; fewer ranks and other plans run")
foreach(program topology_test tune_test)
  rw_label_tests(sanitizer-blind ${program} "."
    "one thread, but for planning beside calls, which comm_test has" SANITIZER thread)
endforeach()

# Each provider's cases take a sanitizer 30 s and more. Of those that differ in one setting one runs for each part of
# the code: checksums, unverified connections and faults over shared memory and TCP, ends in GPU and in host memory over
# one provider.
rw_label_tests("slow;thorough" transport_test "Providers/.*/(CudaIpc|Ofi|Psm2|Rails|Sisci)[A-Za-z0-9]*(Checksums|Unverified)( |$)"
  "the same code as with ShmChecksums, TcpChecksums and the provider without them, which run")
rw_label_tests("slow;thorough" transport_test "Providers/.*/(Psm2|Rails|Sisci)LateAndOutOfOrder( |$)"
  "the wrapper that delays is the same code as with Shm and Tcp, which run")
rw_label_tests("slow;thorough" transport_test
  "Providers/.*/(CudaIpc(FromHost|ToHost|HostMemory|VirtualMemory)|SisciGpu(Staged)?(FromHost|ToHost)|SisciGpuVirtualMemory)( |$)"
  "where the memory lies decides in code that CudaIpc, SisciGpu and SisciGpuStaged run")
rw_label_tests("slow;thorough" transport_test
  "Providers/.*/(ShmBounceRingChecksums|ShmUnverified|ShmWrappedInNoFaults|TcpOneStream|Ofi(Shm|Tcp)Separate|OfiShmTagged)( |$)"
  "combinations of settings of which each runs with another case")
# Ends in GPU memory over libfabric: OfiGpuByDmaBuf. Matching by tags: OfiTcpTagged. Rails: of two kinds.
rw_label_tests("slow;thorough" transport_test
  "Providers/.*/(OfiGpu|OfiGpuTagged|OfiGpuToHost|OfiGpuFromHost|RailsOfTcp|SisciDma|Psm2Separate)( |$)"
  "30 s and more each; each setting runs with another case of the same provider")
rw_label_tests("slow;thorough" netplugin_test "TheLastCloseOfTwoProcesses/v([4-8]|1[01])_"
  "6 s each; each version gives other forms to the same functions: an older one, 9, and the newest, 12, run")
rw_label_tests("slow;thorough" transport_test
  "Faults/SisciGpuReplaced.ByStaging/(BetweenGpusOnly|NoIommu|FromGpuOnly)"
  "13 to 19 s each; the other faults of the same transfers run")
rw_label_tests(slow handshake_test "StreamHandshake.OfMoreRanksThanABatchHasOperations"
  "2 to 16 s without a sanitizer, over two minutes with one: its threads outnumber two cores by a hundred; fewer ranks run")
rw_label_tests("thorough" comm_test "Over/MixedBlocks.*( |$)"
  "4,000 calls under faults take two cores a minute; NetworkBlocks and MappedBlocks run")
# Windows over each transport: random programs over all of them.
rw_label_tests("slow;thorough" comm_test
  "Kinds/(WindowContract|DeviceWindows)\\.[^R].*/((registered_)?over_(auto|ofi|psm2|rails|sisci|tcp_encrypted)|registered_in_the_host|in_the_host_over_shm)( |$)"
  "the messenger's code is the same over each transport; these run over tcp and shm")
rw_label_tests(sanitizer-blind comm_test "Kinds/.*Window.*/over_sisci( |$)"
  "the software libsisci writes memory as a PCIe bridge does, whenever it likes" SANITIZER thread)
rw_label_tests("slow;thorough" diagnose_test
  "PlansForFoundHosts.ThatASettingNamesCompute|Communicator.HierarchicalOverHosts"
  "12 s each without a sanitizer, one to two minutes with one; other tests over several hosts run")
rw_label_tests(sanitizer-blind handshake_test
  "StreamHandshake.(EndsAtTheDeadline|CallsBehindAWait|EndsWhenTheHost|ARankThatHasLeft|Names|ComparesOnlyLocations)"
  "copies behind a wait that was ended run all the same, unordered between ranks; calls that go right run"
  SANITIZER thread)
