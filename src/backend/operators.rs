//! The list of operators, from which everything that has an entry for each of them is made: the struct of a
//! backend's functions (`table.rs`), the table of the CPU backend (`src/cpu_table.rs`) and that of the CUDA
//! backend (`cuda.rs`).
//!
//! A row of an operator is `entry(Arguments) = reference;`: its entry in the table, its arguments, which are a
//! struct of `args`, and the path of its function on the CPU below `crate::op`. The launcher of its kernels is
//! the C function `nvte_cuda_<entry>`. The other functions of a backend, which need more than a struct of
//! arguments and a stream, follow with their parameters.
//!
//! A new operator is:
//! 1. its arguments, a struct in `src/backend/args/<family>.rs`, with `operator!` behind it, which says what its
//!    variants are and what of a call an implementation must be able to take;
//! 2. its row here;
//! 3. its checks in `src/op/<slice>/mod.rs`, which end in `backend::run(&arguments, stream)`, and its C function in
//!    `exports.rs` beside them;
//! 4. its reference in `src/op/<slice>/cpu.rs`;
//! 5. its launcher `nvte_cuda_<entry>` and kernel in `kernels/<slice>/`;
//! 6. its tests in `capi-tests/<slice>/`.
//!
//! `NVTE_BLESS=1 cargo test --test abi` then writes the headers.

macro_rules! operators {
    ($then:ident) => {
        $then! {
            operators {
                quantize(QuantizeArgs) = cast::cpu::quantize;
                dequantize(DequantizeArgs) = cast::cpu::dequantize;
                transpose(TransposeArgs) = transpose::cpu::transpose;
                amax(AmaxArgs) = recipe::cpu::amax;
                scale_from_amax(ScaleFromAmaxArgs) = recipe::cpu::scale_from_amax;
                delayed_scaling(DelayedScalingArgs) = recipe::cpu::delayed_scaling;
                gemm(GemmArgs) = gemm::cpu::gemm;
                memset(MemsetArgs) = transformer_engine::cpu::memset;
                host_copy(HostCopyArgs) = utils::cpu::host_copy;
                offsets(OffsetsArgs) = transformer_engine::cpu::offsets;
                scaled_activation(ScaledActivationArgs) = activation::cpu::scaled_activation;
                softmax(SoftmaxArgs) = softmax::cpu::softmax;
                dropout(DropoutArgs) = dropout::cpu::dropout;
                rope(RopeArgs) = fused_rope::cpu::rope;
                swap_first_dims(SwapFirstDimsArgs) = transpose::cpu::swap_first_dims;
                transpose_dbias(TransposeDbiasArgs) = transpose::cpu_dbias::transpose_dbias;
                requantize(RequantizeArgs) = cast::cpu_requantize::requantize;
                swizzle(SwizzleArgs) = swizzle::cpu::swizzle;
                scale_codes(ScaleCodesArgs) = swizzle::cpu::scale_codes;
                group_amax(GroupAmaxArgs) = recipe::cpu::group_amax;
                partial_amax(PartialAmaxArgs) = recipe::cpu_partial::partial_amax;
                partial_cast(PartialCastArgs) = recipe::cpu_partial::partial_cast;
                norm_forward(NormForwardArgs) = normalization::cpu::forward;
                norm_backward(NormBackwardArgs) = normalization::cpu::backward;
                move_rows(MoveRowsArgs) = fused_attn::cpu::move_rows;
                reindex_cache(ReindexCacheArgs) = fused_attn::cpu::reindex_cache;
                grad_correction(GradCorrectionArgs) = fused_attn::cpu::grad_correction;
                half_lse(HalfLseArgs) = fused_attn::cpu::half_lse;
                out_correction(OutCorrectionArgs) = fused_attn::cpu::out_correction;
                partition(PartitionArgs) = fused_attn::cpu::partition;
                seed(SeedArgs) = fused_attn::cpu::seed;
                copy_rows(CopyRowsArgs) = fused_attn::cpu::copy_rows;
                attention(AttentionArgs) = fused_attn::cpu::attention;
                adam(AdamArgs) = multi_tensor::cpu::adam;
                sgd(SgdArgs) = multi_tensor::cpu::sgd;
                l2_norm(L2NormArgs) = multi_tensor::cpu::l2_norm;
                scale_tensors(ScaleTensorsArgs) = multi_tensor::cpu::scale_tensors;
                scales_from_amax(ScalesFromAmaxArgs) = multi_tensor::cpu::scales_from_amax;
                router_forward(RouterForwardArgs) = fused_router::cpu::router_forward;
                router_backward(RouterBackwardArgs) = fused_router::cpu::router_backward;
                router_histogram(RouterHistogramArgs) = fused_router::cpu::router_histogram;
                aux_loss(AuxLossArgs) = fused_router::cpu::aux_loss;
                aux_loss_backward(AuxLossBackwardArgs) = fused_router::cpu::aux_loss_backward;
                padding(PaddingArgs) = padding::cpu::padding;
                row_map(RowMapArgs) = permutation::cpu::row_map;
                permute(PermuteArgs) = permutation::cpu::permute;
                unpermute(UnpermuteArgs) = permutation::cpu::unpermute;
                sort_pairs(SortPairsArgs) = permutation::cpu::sort_pairs;
                topk(TopkArgs) = topk::cpu::topk;
                nvfp4_quantize(Nvfp4QuantizeArgs) = cast::cpu_nvfp4::nvfp4_quantize;
                nvfp4_dequantize(Nvfp4DequantizeArgs) = cast::cpu_nvfp4::nvfp4_dequantize;
                hadamard(HadamardArgs) = hadamard_transform::cpu::hadamard;
                hadamard_amax(HadamardAmaxArgs) = hadamard_transform::cpu::hadamard_amax;
                nvfp4_transpose(Nvfp4TransposeArgs) = transpose::cpu_nvfp4::transpose;
                nvfp4_scale_transpose(Nvfp4ScaleTransposeArgs) = transpose::cpu_nvfp4::scale_transpose;
                nvfp4_alpha(Nvfp4AlphaArgs) = recipe::cpu_nvfp4::alpha;
                nvfp4_global_scale(Nvfp4GlobalScaleArgs) = recipe::cpu_nvfp4::global_scale;
                nvfp4_block_scale(Nvfp4BlockScaleArgs) = recipe::cpu_nvfp4::block_scale;
                nvfp4_partial_amax(Nvfp4PartialAmaxArgs) = recipe::cpu_nvfp4::partial_amax;
                nvfp4_partial_cast(Nvfp4PartialCastArgs) = recipe::cpu_nvfp4::partial_cast;
                grouped_gemm(GroupedGemmArgs) = gemm::cpu_grouped::grouped_gemm;
                grouped_bias(GroupedBiasArgs) = gemm::cpu_grouped::grouped_bias;
                widen(WidenArgs) = gemm::cpu_grouped::widen;
                counters(CountersArgs) = gemm::cpu_grouped::counters;
                add(AddArgs) = multi_tensor::cpu::add;
                expert_rows(ExpertRowsArgs) = ep::cpu::expert_rows;
                cross_entropy(CrossEntropyArgs) = cross_entropy::cpu::cross_entropy;
                combine_cross_entropy(CombineCrossEntropyArgs) = cross_entropy::cpu::combine_cross_entropy;
                total_loss(TotalLossArgs) = cross_entropy::cpu::total_loss;
                embedding(EmbeddingArgs) = embedding::cpu::embedding;
                row_keys(RowKeysArgs) = embedding::cpu::row_keys;
                sum_rows(SumRowsArgs) = embedding::cpu::sum_rows;
                sample_tokens(SampleTokensArgs) = sampling::cpu::sample_tokens;
                step_numbers(StepNumbersArgs) = multi_tensor::cpu_step::step_numbers;
                muon(MuonArgs) = multi_tensor::cpu_step::muon;
                router_weights(RouterWeightsArgs) = fused_router::cpu::router_weights;
                router_z_loss(RouterZLossArgs) = fused_router::cpu::router_z_loss;
                merge_attention(MergeAttentionArgs) = fused_attn::cpu::merge_attention;
                zero_gaps(ZeroGapsArgs) = ep::cpu::zero_gaps;
                chunk_lengths(ChunkLengthsArgs) = fused_attn::cpu::chunk_lengths;
                symmetric_gemm(SymmetricGemmArgs) = gemm::cpu::symmetric_gemm;
            }
            functions {
                /// 10 * major + minor of the current device, 0 for a backend without one.
                device_arch(arch: *mut c_int) = nvtex::cpu::device_arch;
                /// Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
                device_malloc(ptr: *mut *mut c_void, bytes: usize) = nvtex::cpu::device_malloc;
                device_free(ptr: *mut c_void) = nvtex::cpu::device_free;
                /// Asynchronous on the stream, except that copies from and to pageable memory may block.
                device_memcpy(
                    dst: *mut c_void,
                    src: *const c_void,
                    bytes: usize,
                    kind: CopyKind,
                    stream: cudaStream_t,
                ) = nvtex::cpu::device_memcpy;
                /// Copies device bytes to the host and waits for them. `*copied` is false, and nothing was copied, while
                /// the stream is being captured into a graph.
                read_back(
                    dst: *mut c_void,
                    src: *const c_void,
                    bytes: usize,
                    copied: *mut bool,
                    stream: cudaStream_t,
                ) = nvtex::cpu::read_back;
                stream_create(stream: *mut cudaStream_t) = nvtex::cpu::stream_create;
                stream_destroy(stream: cudaStream_t) = nvtex::cpu::stream_destroy;
                stream_synchronize(stream: cudaStream_t) = nvtex::cpu::stream_synchronize;
                /// Whether the stream is being captured into a graph. A backend without the entry may capture any time.
                stream_is_capturing(
                    stream: cudaStream_t,
                    capturing: *mut bool,
                ) = nvtex::cpu::stream_is_capturing;
                /// Stream `index` of the current device's pool, created on first use.
                compute_stream(index: c_int, stream: *mut cudaStream_t) = multi_stream::cpu::compute_stream;
                /// Event `index` of the current device's pool, created on first use.
                compute_event(index: c_int, event: *mut cudaEvent_t) = multi_stream::cpu::compute_event;
                /// The implementation of a pass and its workspace; UNIMPLEMENTED with all reasons if there is none.
                attention_plan(
                    args: *const AttentionArgs,
                    plan: *mut AttentionPlan,
                ) = fused_attn::cpu::attention_plan;
                /// Streams of the calling thread, at most 4, that wait for what is on `stream` by now.
                fork(
                    stream: cudaStream_t,
                    count: c_int,
                    branches: *mut cudaStream_t,
                ) = multi_stream::cpu::fork;
                /// `stream` waits for what is on the first `count` of them by now.
                join(stream: cudaStream_t, count: c_int) = multi_stream::cpu::join;
                device_properties(
                    properties: *mut DeviceProperties,
                ) = nvtex::cpu::device_properties;
                /// `to` is the sum, or with `max` the greatest, of `ranks` slots in their order, in float32: `count`
                /// elements each, `pitch` bytes (a multiple of 16) apart.
                rank_sum(
                    slots: *const c_void,
                    pitch: usize,
                    ranks: usize,
                    to: *mut c_void,
                    count: usize,
                    dtype: NVTEDType,
                    max: bool,
                    stream: cudaStream_t,
                ) = nvtex::rank_sum::rank_sum;
            }
        }
    };
}
pub(crate) use operators;
