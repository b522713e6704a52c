# How dev/unit_tests.py runs tests, in any build; which tests run is not decided here.
#
# ARITHMETIC: a test that computes in one thread and waits for nothing, so that it may run at the lowest priority beside
# tests that run alone (RUN_SERIAL), which wait most of the time.
# OWN_PROCESS: a test that shares no process with others.
# COST: about how many seconds a long test takes. Long ones begin first, and share a process with few.

rw_schedule_tests(plan_test "." ARITHMETIC)
rw_schedule_tests(schedule_test "." ARITHMETIC)
rw_schedule_tests(topology_test "." ARITHMETIC)
rw_schedule_tests(tune_test "AgainstTheSimulator|^PlannedChoice|^PlannedCandidates" ARITHMETIC)

# It reads its settings when it is loaded, and looks now and then whether they have changed since.
rw_schedule_tests(software_sisci_test "." OWN_PROCESS)
# They fork, and each child initialises libpsm2, which no other test may have done before.
rw_schedule_tests(transport_test "Psm2Gpu" OWN_PROCESS)

rw_schedule_tests(executor_test "^Block.RunsEverySchedule" COST 10)
rw_schedule_tests(executor_test "^Walker.Runs(EverySchedule|PlansRightWhoseStepsLag)" COST 5)
rw_schedule_tests(executor_test "^Block.CombinesEvery|^Targets/Kernels.EveryCode" COST 4)
rw_schedule_tests(schedule_test "^Lags.EveryPlan|LargeMessagesReach.*/mi250_16gcd_x2" COST 3)
rw_schedule_tests(plan_test "AllUndirectedOnesOfFiveGpus|PackedIsNear.*/dgx2|EveryRecordedMachineHas" COST 3)
rw_schedule_tests(tune_test "AgainstTheSimulator.*/dgx2" COST 8)
rw_schedule_tests(tune_test "AgainstTheSimulator.*/(dgx1v|rccl|dgx_h100_x2)" COST 2)
rw_schedule_tests(tune_test "^PlannedChoice" COST 1)
rw_schedule_tests(topology_test "^Named.SaysWhat" COST 3)
rw_schedule_tests(schedule_test "^FromPlan" COST 2)
rw_schedule_tests(core_test "LengthsBeyondOneCall" COST 2)
rw_schedule_tests(bootstrap_test "^Join.(WithoutDesc|Missing)" COST 3)
rw_schedule_tests(comm_test "RandomProgramsDoWhatAModelDoes|^All/AgreedChunksOver|^AgreedChunks" COST 4)
rw_schedule_tests(diagnose_test "^Measure.EveryCollective|^Communicator.(Hierarchical|Measures)" COST 10)
rw_schedule_tests(capi_test "^Handles" COST 3)
rw_schedule_tests(transport_test "^Rails.CutsAtRandom|^RailsOfHosts" COST 8)
rw_schedule_tests(transport_test "ACopyThatStandsStill|^TcpLinger.WaitsFor|EveryPairOfMemories" COST 3)
rw_schedule_tests(transport_test "^Faults/SisciGpuReplaced|^Rails.ARailThatIsSilent" COST 2)
rw_schedule_tests(transport_test "Contract.LargeMessages/(Ofi|Cuda|SisciGpu|Psm2)" COST 1)
rw_schedule_tests(netplugin_test "^PluginTest.AThousand|OfTwoProcesses" COST 2)
