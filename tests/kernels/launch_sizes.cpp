// SPDX-License-Identifier: Apache-2.0
// Prints, for each kernel, the threads of a block and the most bytes of dynamic shared memory that
// a launch asks for: a line "kernel instance threads bytes", "-" for all instances. For
// scripts/check_sass, which adds the registers and static memory that the machine code has.
#include <cstdio>

#include "kernels/attention_float.cuh"
#include "kernels/attention_mma.cuh"
#include "kernels/block_product.cuh"
#include "kernels/block_rows.cuh"
#include "kernels/close_events.cuh"
#include "kernels/codes.cuh"
#include "kernels/copies.cuh"
#include "kernels/decoder.cuh"
#include "kernels/event_mass.cuh"
#include "kernels/forgetting.cuh"
#include "kernels/key_segmenter.cuh"
#include "kernels/linear_recurrence.cuh"
#include "kernels/mixture.cuh"
#include "kernels/place_events.cuh"
#include "kernels/product.cuh"
#include "kernels/recall.cuh"
#include "kernels/recall_counts.cuh"
#include "kernels/refine.cuh"
#include "kernels/relevance.cuh"
#include "kernels/residency.cuh"
#include "kernels/reweight.cuh"
#include "kernels/rows.cuh"
#include "kernels/short_convolution.cuh"
#include "kernels/state.cuh"
#include "kernels/surprise.cuh"
#include "kernels/threshold.cuh"
#include "kernels/turn_back.cuh"
#include "kernels/window.cuh"

using namespace episodic::kernels;

namespace {

void print(const char* kernel, int threads, std::size_t bytes = 0, const char* instance = "-") {
  std::printf("%s %s %d %zu\n", kernel, instance, threads, bytes);
}

}  // namespace

int main() {
  for (const int dim : {64, 96, 128, 256}) {
    char name[32];
    for (const bool few : {false, true}) {
      const MmaTile tile = mma_tile(dim, few);
      std::snprintf(name, sizeof(name), "%d,%s", dim, few ? "few" : "many");
      print("MmaAttentionKernel", kWarpSize * tile.warps, mma_shared_bytes(dim, tile), name);
    }
    const ColumnTile tile = column_tile(dim);
    std::snprintf(name, sizeof(name), "%d", dim);
    print("MmaColumnSumsKernel", kWarpSize * tile.warps, column_shared_bytes(dim, tile), name);
    print("FloatAttentionKernel", kFloatThreads, float_shared_bytes(dim), name);
    print("FloatColumnSumsKernel", kFloatThreads, float_column_shared_bytes(dim), name);
    print("RowMassKernel", kFloatThreads, row_mass_shared_bytes(dim), name);
    print("MmaRowMassKernel", kWarpSize * tile.warps, mma_row_mass_shared_bytes(dim), name);
  }
  for (const int dim : {64, 128, 256}) {
    char name[32];
    std::snprintf(name, sizeof(name), "%d", dim);
    print("WgmmaAttentionKernel", wgmma_tile(dim).threads(), wgmma_shared_bytes(dim), name);
    print("WgmmaColumnSumsKernel", wgmma_column_tile(dim).threads(), wgmma_column_shared_bytes(dim),
          name);
  }
  print("MergeSplitsKernel", kWarpSize * kMergeWarps);
  print("ScoresToColumnSumsKernel", 256);
  print("BoundEventsKernel", kSelectThreads, coded_query_bytes(kMostRecallWidth));
  print("CloseEventsKernel", kCloseThreads);
  print("CopyRunsKernel", kCopyThreads);
  print("CountRecallsKernel", kCountThreads);
  print("EventToBlockKernel", kCopyThreads);
  print("EventToCodesKernel", kCopyThreads);
  print("WidenRowsKernel", kWarpSize * kWidenWarps);
  print("EncodeKernel", kCodeThreads);
  print("EventMassKernel", kEventMassThreads);
  print("ReceiveMassesKernel", kReceiveThreads);
  for (const char* kernel : {"EmbedKernel", "AddNormKernel", "AddNormRowKernel", "GateKernel",
                             "ActivationKernel", "GateRowsKernel", "ScaleQueriesKernel"})
    print(kernel, kDecoderThreads);
  print("ChooseExpertsKernel", kMixtureThreads, kMostMixtureExperts * sizeof(float));
  for (const char* kernel : {"ExpertGateKernel", "ExpertSumKernel"}) print(kernel, kMixtureThreads);
  print("FinishQkvKernel", kQkvThreads);
  print("ForgetKernel", kForgetThreads);
  print("KeySegmenterKernel", kKeyThreads);
  print("PlaceKernel", kPlaceThreads);
  print("ProbeKernel", 1);
  print("RecallKernel", kSelectThreads, recall_shared_bytes(kMostRecallWidth, kMostRecallRoom));
  print("ProductKernel", kDecoderThreads, kMostProductShared);
  print("BlockProductKernel", kDecoderThreads, kMostRoundedShared);
  for (const char* kernel : {"WidenBlocksKernel", "EmbedBlocksKernel"})
    print(kernel, kBlockRowThreads);
  for (const char* kernel : {"BlockExpertGateKernel", "BlockExpertSumKernel"})
    print(kernel, kMixtureThreads, kMostRoundedShared);
  print("GraphHalfKernel", kHalfGraphThreads, kHalfGraphSharedBytes);
  print("GraphFloatKernel", kFloatGraphThreads);
  print("GraphSumsKernel", kTileSumThreads);
  print("RefineKernel", kChooseThreads);
  print("KeepFlagsKernel", kChooseThreads);
  print("CommitRelevanceKernel", kRelevanceThreads);
  print("SelectRepresentativesKernel", kHeadsPerBlock * kWarpSize,
        kHeadsPerBlock * kMostRepresentatives * sizeof(std::int32_t));
  print("UnitLengthKernel", kUnitThreads);
  for (const char* kernel : {"TouchEventsKernel", "ChooseVictimsKernel", "OccupySlotsKernel"})
    print(kernel, kResidencyThreads);
  print("ScoreEventsKernel", kEventScoreThreads, kMostScoredWidth * sizeof(float));
  print("RecallTopKernel", kRecallTopThreads);
  print("RowsKernel", kRowsThreads);
  for (const char* kernel : {"MergeStatesKernel", "RescaleSumsKernel"})
    print(kernel, kMergeStateThreads);
  print("ShortConvolutionKernel", kConvolutionThreads);
  print("RecurrenceInputsKernel", kRecurrenceThreads);
  print("RecurrenceKernel", kRecurrenceThreads, recurrence_shared_bytes(kMostRecurrentKey));
  print("RecurrenceNormKernel", kRecurrenceNormThreads);
  print("SurpriseKernel", kSurpriseThreads);
  print("SurprisePieceKernel", kSurpriseThreads);
  print("ThresholdKernel", kThresholdThreads, threshold_shared_bytes(kMostStaged));
  print("TurnBackKernel", kTurnBackThreads);
  for (const char* kernel :
       {"AppendWindowKernel", "RotaryAnglesKernel", "SumQueriesKernel", "TurnMeanKernel"})
    print(kernel, kWindowThreads);
  return 0;
}
