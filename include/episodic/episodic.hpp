// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Everything that can be declared here: the memory on plain pointers, tokenizers, sessions and the
/// engine, models and their attention; and where libtorch's headers are, what takes its tensors.
/// What is defined is up to the linked target: episodic::core, episodic::episodic, episodic::torch,
/// episodic::device, episodic::device_torch.
/// A program that uses one part includes that part's header instead.

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/units.hpp"
#include "episodic/device/device_engine.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/episodic_attention.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/model/memory_settings.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/event_reader.hpp"
#include "episodic/session/reader_heads.hpp"
#include "episodic/session/run.hpp"
#include "episodic/session/session.hpp"
#include "episodic/text/sentences.hpp"
#include "episodic/text/tokenizer.hpp"

#if __has_include(<ATen/core/Tensor.h>)
#include "episodic/device_torch/device_attention.hpp"
#include "episodic/torch_slots/torch_slots.hpp"
#endif
