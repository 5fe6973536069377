"""What the C headers declare, for ctypes."""

# Generated from the C headers by tests/abi.rs.

from ctypes import (
    CFUNCTYPE, Structure, c_bool, c_char_p, c_double, c_float, c_int, c_int8, c_int16, c_int32, c_int64,
    c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

NVTE_VERSION_MAJOR = 0
NVTE_VERSION_MINOR = 1
NVTE_VERSION_PATCH = 0
kNVTEByte = 0
kNVTEInt16 = 1
kNVTEInt32 = 2
kNVTEInt64 = 3
kNVTEFloat32 = 4
kNVTEFloat16 = 5
kNVTEBFloat16 = 6
kNVTEFloat8E4M3 = 7
kNVTEFloat8E5M2 = 8
kNVTEFloat8E8M0 = 9
kNVTEFloat4E2M1 = 10
kNVTENumTypes = 11
NVTE_DELAYED_TENSOR_SCALING = 0
NVTE_MXFP8_1D_SCALING = 1
NVTE_BLOCK_SCALING_1D = 2
NVTE_BLOCK_SCALING_2D = 3
NVTE_NVFP4_1D_SCALING = 4
NVTE_INVALID_SCALING = 100
LayerNorm = 0
RMSNorm = 1
NVTE_ROUTING_MAP_FORMAT_BYTEMAP = 0
NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 = 1
NVTE_QB_HISTOGRAM_TWO_KERNEL = 0
NVTE_QB_HISTOGRAM_FUSED_ATOMIC = 1
kNVTERowwiseData = 0
kNVTEColumnwiseData = 1
kNVTEScale = 2
kNVTEAmax = 3
kNVTERowwiseScaleInv = 4
kNVTEColumnwiseScaleInv = 5
kNVTEColumnwiseAmax = 6
kNVTEWithGEMMSwizzledScales = 7
kNVTERowScaledNVFP4 = 8
kNVTENVFP4E4M3Max = 9
kNVTENumTensorParams = 10
kNVTEGroupedRowwiseData = 0
kNVTEGroupedColumnwiseData = 1
kNVTEGroupedScale = 2
kNVTEGroupedAmax = 3
kNVTEGroupedRowwiseScaleInv = 4
kNVTEGroupedColumnwiseScaleInv = 5
kNVTEGroupedColumnwiseAmax = 6
kNVTEGroupedFirstDims = 7
kNVTEGroupedLastDims = 8
kNVTEGroupedTensorOffsets = 9
kNVTEGroupedWithGEMMSwizzledScales = 10
kNVTENumGroupedTensorParams = 11
kNVTENVFP44Over6Disabled = 0
kNVTENVFP44Over6MinMAE = 1
kNVTENVFP44Over6MinMSE = 2
kNVTEQuantizationConfigForcePow2Scales = 0
kNVTEQuantizationConfigAmaxEpsilon = 1
kNVTEQuantizationConfigNoopTensor = 2
kNVTEQuantizationConfigFloat8BlockScaleTensorFormat = 3
kNVTEQuantizationConfigRNGState = 4
kNVTEQuantizationConfigNVFP42DQuantization = 5
kNVTEQuantizationConfigStochasticRounding = 6
kNVTEQuantizationConfigUseFastMath = 7
kNVTEQuantizationConfigNVFP44Over6Mode = 8
kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath = 9
kNVTEQuantizationConfigMXFP82DQuantization = 10
kNVTEQuantizationConfigNumAttributes = 11
kNVTEMatmulConfigBiasTensor = 0
kNVTEMatmulConfigDBiasTensor = 1
kNVTEMatmulConfigWithGELUEpilogue = 2
kNVTEMatmulConfigWithDGELUEpilogue = 3
kNVTEMatmulConfigEpilogueAuxTensor = 4
kNVTEMatmulConfigUseSplitAccumulator = 5
kNVTEMatmulConfigSMCount = 6
kNVTEMatmulConfigNumAttributes = 7
kNVTEGroupedMatmulConfigAvgM = 0
kNVTEGroupedMatmulConfigAvgN = 1
kNVTEGroupedMatmulConfigAvgK = 2
kNVTEGroupedMatmulConfigSMCount = 3
kNVTEGroupedMatmulConfigUseSplitAccumulator = 4
kNVTEGroupedMatmulConfigNumAttributes = 5
GELU = 0
GEGLU = 1
GLU = 2
SILU = 3
SWIGLU = 4
RELU = 5
REGLU = 6
QGELU = 7
QGEGLU = 8
SRELU = 9
SREGLU = 10
CLAMPED_SWIGLU = 11
NVTE_SBHD = 0
NVTE_BSHD = 1
NVTE_THD = 2
NVTE_BSHD_2SBHD = 3
NVTE_SBHD_2BSHD = 4
NVTE_THD_2BSHD = 5
NVTE_THD_2SBHD = 6
NVTE_BHSD = 7
NVTE_QKV_Format_NOT_SET = 8
NVTE_SB3HD = 0
NVTE_SBH3D = 1
NVTE_SBHD_SB2HD = 2
NVTE_SBHD_SBH2D = 3
NVTE_SBHD_SBHD_SBHD = 4
NVTE_BS3HD = 5
NVTE_BSH3D = 6
NVTE_BSHD_BS2HD = 7
NVTE_BSHD_BSH2D = 8
NVTE_BSHD_BSHD_BSHD = 9
NVTE_T3HD = 10
NVTE_TH3D = 11
NVTE_THD_T2HD = 12
NVTE_THD_TH2D = 13
NVTE_THD_THD_THD = 14
NVTE_SBHD_BSHD_BSHD = 15
NVTE_BSHD_SBHD_SBHD = 16
NVTE_THD_BSHD_BSHD = 17
NVTE_THD_SBHD_SBHD = 18
NVTE_Paged_KV_BSHD_BSHD_BSHD = 19
NVTE_Paged_KV_BSHD_SBHD_SBHD = 20
NVTE_Paged_KV_SBHD_BSHD_BSHD = 21
NVTE_Paged_KV_SBHD_SBHD_SBHD = 22
NVTE_Paged_KV_THD_BSHD_BSHD = 23
NVTE_Paged_KV_THD_SBHD_SBHD = 24
NVTE_BHSD_BHSD_BHSD = 25
NVTE_QKV_Layout_NOT_SET = 26
NVTE_3HD = 0
NVTE_H3D = 1
NVTE_HD_2HD = 2
NVTE_HD_H2D = 3
NVTE_HD_HD_HD = 4
NVTE_Paged_KV_HD_HD_HD = 5
NVTE_SD_SD_SD = 6
NVTE_NO_BIAS = 0
NVTE_PRE_SCALE_BIAS = 1
NVTE_POST_SCALE_BIAS = 2
NVTE_ALIBI = 3
NVTE_NO_MASK = 0
NVTE_PADDING_MASK = 1
NVTE_CAUSAL_MASK = 2
NVTE_PADDING_CAUSAL_MASK = 3
NVTE_CAUSAL_BOTTOM_RIGHT_MASK = 4
NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK = 5
NVTE_VANILLA_SOFTMAX = 0
NVTE_OFF_BY_ONE_SOFTMAX = 1
NVTE_LEARNABLE_SOFTMAX = 2
NVTE_No_Backend = -1
NVTE_F16_arbitrary_seqlen = 1
NVTE_FP8 = 2
kNVTEFusedAttnConfigIsTraining = 0
kNVTEFusedAttnConfigDeterministic = 1
kNVTEFusedAttnConfigCudaGraph = 2
kNVTEFusedAttnConfigReturnMaxLogit = 3
kNVTEFusedAttnConfigAttnMaskType = 4
kNVTEFusedAttnConfigBiasType = 5
kNVTEFusedAttnConfigWindowSizeLeft = 6
kNVTEFusedAttnConfigWindowSizeRight = 7
kNVTEFusedAttnConfigBottomRightDiagonal = 8
kNVTEFusedAttnConfigSoftmaxType = 9
kNVTEFusedAttnConfigScalingMode = 10
kNVTEFusedAttnConfigDropout = 11
kNVTEFusedAttnConfigAttnScale = 12
kNVTEFusedAttnConfigQKVDtype = 13
kNVTEFusedAttnConfigODtype = 14
kNVTEFusedAttnConfigDODtype = 15
kNVTEFusedAttnConfigDQKVDtype = 16
kNVTEFusedAttnConfigQKVLayout = 17
kNVTEFusedAttnConfigOFormat = 18
kNVTEFusedAttnConfigDOFormat = 19
kNVTEFusedAttnConfigDQKVLayout = 20
kNVTEFusedAttnConfigQKVScaleInvFormat = 21
kNVTEFusedAttnConfigDOScaleInvFormat = 22
kNVTEFusedAttnConfigBatchSize = 23
kNVTEFusedAttnConfigNumAttnHeads = 24
kNVTEFusedAttnConfigNumGQAGroups = 25
kNVTEFusedAttnConfigHeadDimQK = 26
kNVTEFusedAttnConfigHeadDimV = 27
kNVTEFusedAttnConfigMaxSeqlenQ = 28
kNVTEFusedAttnConfigMaxSeqlenKV = 29
kNVTEFusedAttnConfigNumTokensQ = 30
kNVTEFusedAttnConfigNumTokensKV = 31
kNVTEFusedAttnConfigNumPagesK = 32
kNVTEFusedAttnConfigNumPagesV = 33
kNVTEFusedAttnConfigPageSizeK = 34
kNVTEFusedAttnConfigPageSizeV = 35
kNVTEFusedAttnConfigMaxPagesPerSeqK = 36
kNVTEFusedAttnConfigMaxPagesPerSeqV = 37
kNVTEFusedAttnConfigBiasBatchSize = 38
kNVTEFusedAttnConfigBiasNumHeads = 39
kNVTEFusedAttnConfigBiasSeqlenQ = 40
kNVTEFusedAttnConfigBiasSeqlenKV = 41
kNVTEFusedAttnConfigNumAttributes = 42
kNVTEFusedAttnFwdParamsQ = 0
kNVTEFusedAttnFwdParamsK = 1
kNVTEFusedAttnFwdParamsV = 2
kNVTEFusedAttnFwdParamsBias = 3
kNVTEFusedAttnFwdParamsSoftmaxOffset = 4
kNVTEFusedAttnFwdParamsS = 5
kNVTEFusedAttnFwdParamsO = 6
kNVTEFusedAttnFwdParamsAuxCtxTensors = 7
kNVTEFusedAttnFwdParamsCuSeqlensQ = 8
kNVTEFusedAttnFwdParamsCuSeqlensKV = 9
kNVTEFusedAttnFwdParamsCuSeqlensQPadded = 10
kNVTEFusedAttnFwdParamsCuSeqlensKVPadded = 11
kNVTEFusedAttnFwdParamsPageTableK = 12
kNVTEFusedAttnFwdParamsPageTableV = 13
kNVTEFusedAttnFwdParamsRngState = 14
kNVTEFusedAttnFwdParamsIsTraining = 15
kNVTEFusedAttnFwdParamsCudaGraph = 16
kNVTEFusedAttnFwdParamsReturnMaxLogit = 17
kNVTEFusedAttnFwdParamsAttnMaskType = 18
kNVTEFusedAttnFwdParamsBiasType = 19
kNVTEFusedAttnFwdParamsWindowSizeLeft = 20
kNVTEFusedAttnFwdParamsWindowSizeRight = 21
kNVTEFusedAttnFwdParamsBottomRightDiagonal = 22
kNVTEFusedAttnFwdParamsSoftmaxType = 23
kNVTEFusedAttnFwdParamsDropout = 24
kNVTEFusedAttnFwdParamsAttnScale = 25
kNVTEFusedAttnFwdParamsQKVLayout = 26
kNVTEFusedAttnFwdParamsOFormat = 27
kNVTEFusedAttnFwdParamsQKVScaleInvFormat = 28
kNVTEFusedAttnFwdParamsMaxSeqlenQ = 29
kNVTEFusedAttnFwdParamsMaxSeqlenKV = 30
kNVTEFusedAttnFwdParamsWorkspace = 31
kNVTEFusedAttnFwdParamsStream = 32
kNVTEFusedAttnFwdParamsNumAttributes = 33
kNVTEFusedAttnBwdParamsQ = 0
kNVTEFusedAttnBwdParamsK = 1
kNVTEFusedAttnBwdParamsV = 2
kNVTEFusedAttnBwdParamsO = 3
kNVTEFusedAttnBwdParamsDO = 4
kNVTEFusedAttnBwdParamsS = 5
kNVTEFusedAttnBwdParamsDP = 6
kNVTEFusedAttnBwdParamsAuxCtxTensors = 7
kNVTEFusedAttnBwdParamsDQ = 8
kNVTEFusedAttnBwdParamsDK = 9
kNVTEFusedAttnBwdParamsDV = 10
kNVTEFusedAttnBwdParamsDBias = 11
kNVTEFusedAttnBwdParamsDSoftmaxOffset = 12
kNVTEFusedAttnBwdParamsCuSeqlensQ = 13
kNVTEFusedAttnBwdParamsCuSeqlensKV = 14
kNVTEFusedAttnBwdParamsCuSeqlensQPadded = 15
kNVTEFusedAttnBwdParamsCuSeqlensKVPadded = 16
kNVTEFusedAttnBwdParamsDeterministic = 17
kNVTEFusedAttnBwdParamsCudaGraph = 18
kNVTEFusedAttnBwdParamsAttnMaskType = 19
kNVTEFusedAttnBwdParamsBiasType = 20
kNVTEFusedAttnBwdParamsWindowSizeLeft = 21
kNVTEFusedAttnBwdParamsWindowSizeRight = 22
kNVTEFusedAttnBwdParamsBottomRightDiagonal = 23
kNVTEFusedAttnBwdParamsSoftmaxType = 24
kNVTEFusedAttnBwdParamsDropout = 25
kNVTEFusedAttnBwdParamsAttnScale = 26
kNVTEFusedAttnBwdParamsQKVLayout = 27
kNVTEFusedAttnBwdParamsOFormat = 28
kNVTEFusedAttnBwdParamsDOFormat = 29
kNVTEFusedAttnBwdParamsDQKVLayout = 30
kNVTEFusedAttnBwdParamsQKVScaleInvFormat = 31
kNVTEFusedAttnBwdParamsDOScaleInvFormat = 32
kNVTEFusedAttnBwdParamsMaxSeqlenQ = 33
kNVTEFusedAttnBwdParamsMaxSeqlenKV = 34
kNVTEFusedAttnBwdParamsWorkspace = 35
kNVTEFusedAttnBwdParamsStream = 36
kNVTEFusedAttnBwdParamsNumAttributes = 37
kNVTECommGemmAlgoDefault = 0
kNVTECommGemmAlgoSplitP2P = 1
kNVTECommGemmAlgoSplitMulticast = 2
kNVTECommGemmAlgoAtomicP2P = 3
kNVTECommGemmAlgoAtomicMulticast = 4


class NVTEShape(Structure):
    _fields_ = [
        ("data", c_size_t * 15),
        ("ndim", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEBasicTensor(Structure):
    _fields_ = [
        ("data_ptr", c_void_p),
        ("dtype", c_int),
        ("shape", NVTEShape),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTETensorPack(Structure):
    _fields_ = [
        ("tensors", c_void_p * 10),
        ("size", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTECommWindow(Structure):
    _fields_ = [
        ("window", c_void_p),
        ("offset", c_uint64),
        ("scale_window", c_void_p),
        ("scale_offset", c_uint64),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEEpGroupConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ep_size", c_int32),
        ("num_experts", c_int32),
        ("max_tokens_per_rank", c_int32),
        ("max_recv_tokens_per_rank", c_int32),
        ("hidden_dim", c_int32),
        ("num_comm_sms", c_int32),
        ("max_token_dtype", c_int),
        ("zero_copy", c_int32),
        ("num_topk", c_int32),
        ("drop_on_overflow", c_int32),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"max_token_dtype": "DType"}




class NVTEEpLayerConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("top_k", c_int32),
        ("dispatch_output_per_expert_alignment", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}


NVTEX_ATTENTION_FORWARD = 0
NVTEX_ATTENTION_BACKWARD = 1
NVTEX_LOSS_NONE = 0
NVTEX_LOSS_SUM = 1
NVTEX_LOSS_MEAN = 2


class NVTEXCrossEntropyOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ignored_target", c_int64),
        ("vocabulary_start", c_size_t),
        ("vocabulary_size", c_size_t),
        ("label_smoothing", c_float),
        ("z_loss", c_float),
        ("reduction", c_int),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"reduction": "LossReduction"}


NVTEX_OK = 0
NVTEX_INVALID_ARGUMENT = 1
NVTEX_UNSUPPORTED = 2
NVTEX_DEVICE_ERROR = 3
NVTEX_INTERNAL_ERROR = 4
NVTEX_ERROR_RETURN = 0
NVTEX_ERROR_ABORT = 1
NVTEX_ERROR_THROW = 2
NVTEX_LOG_NONE = 0
NVTEX_LOG_ERROR = 1
NVTEX_LOG_CHECK = 2
NVTEX_LOG_DISPATCH = 3
NVTEX_LOG_EXEC = 4
NVTEX_GRID_GROUPS = 8
NVTEX_SUM_ORDERED = 0
NVTEX_SUM_FAST = 1
NVTEX_CALL_CHECK_DEFAULT = 0
NVTEX_CALL_CHECK_OFF = 1
NVTEX_CALL_CHECK_ON = 2
NVTEX_TRANSPORT_AUTOMATIC = 0
NVTEX_TRANSPORT_SHARED = 1
NVTEX_TRANSPORT_NCCL = 2
NVTEX_GRID_TP = 0
NVTEX_GRID_CP = 1
NVTEX_GRID_DP = 2
NVTEX_GRID_DP_CP = 3
NVTEX_GRID_ALL_BUT_PP = 4
NVTEX_GRID_EP = 5
NVTEX_GRID_EXPERT_DP = 6
NVTEX_GRID_PP = 7
NVTEX_REDUCTION_SUM = 0
NVTEX_REDUCTION_MAX = 1


class NVTEXCommunicatorConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("timeout", c_double),
        ("staging_bytes", c_size_t),
        ("sum_order", c_int),
        ("check", c_int),
        ("transport", c_int),
        ("abort_borrowed", c_int32),
        ("on_failure", c_void_p),
        ("user", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"sum_order": "SumOrder", "check": "CallCheck", "transport": "Transport"}




class NVTEXMessage(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("peer", c_int),
        ("receive", c_int),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXCollectives(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("all_gather", c_void_p),
        ("all_to_all", c_void_p),
        ("broadcast", c_void_p),
        ("barrier", c_void_p),
        ("exchange", c_void_p),
        ("reduce_scatter", c_void_p),
        ("all_reduce", c_void_p),
        ("split", c_void_p),
        ("abort", c_void_p),
        ("release", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXGridConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tp", c_size_t),
        ("cp", c_size_t),
        ("dp", c_size_t),
        ("pp", c_size_t),
        ("ep", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXTransfer(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("count", c_size_t),
        ("dtype", c_int),
        ("peer", c_int),
        ("receive", c_int),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}


NVTEX_CONTEXT_ENABLED = 1
NVTEX_CONTEXT_CALIBRATING = 2
NVTEX_CONTEXT_QUANTIZED_WEIGHTS = 4
NVTEX_RECIPE_DELAYED_SCALING = 0
NVTEX_RECIPE_CURRENT_SCALING = 1
NVTEX_RECIPE_BLOCK_SCALING = 2
NVTEX_RECIPE_MXFP8 = 3
NVTEX_RECIPE_CUSTOM = 4
NVTEX_RECIPE_NVFP4 = 5
NVTEX_FORMAT_E4M3 = 0
NVTEX_FORMAT_E5M2 = 1
NVTEX_FORMAT_HYBRID = 2
NVTEX_HISTORY_MAX = 0
NVTEX_HISTORY_MOST_RECENT = 1
NVTEX_BACKWARD_QUANTIZED = 0
NVTEX_BACKWARD_HIGH_PRECISION = 1
NVTEX_BACKWARD_DEQUANTIZED = 2
NVTEX_ROLE_INPUT = 0
NVTEX_ROLE_WEIGHT = 1
NVTEX_ROLE_GRAD_OUTPUT = 2
NVTEX_SLOT_HIGH_PRECISION = 0
NVTEX_SLOT_DELAYED = 1
NVTEX_SLOT_CURRENT = 2
NVTEX_SLOT_BLOCK = 3
NVTEX_SLOT_MXFP8 = 4
NVTEX_SLOT_NVFP4 = 5
NVTEX_LIFETIME_SCRATCH = 0
NVTEX_LIFETIME_TAPE = 1
NVTEX_LIFETIME_PERSISTENT = 2
NVTEX_PASS_FORWARD = 0
NVTEX_PASS_BACKWARD = 1
NVTEX_PARALLEL_DEFAULT = 0
NVTEX_PARALLEL_COLUMN = 1
NVTEX_PARALLEL_ROW = 2
NVTEX_QK_NORM_NONE = 0
NVTEX_QK_NORM_L2 = 1
NVTEX_QK_NORM_RMS = 2
NVTEX_QK_NORM_LAYER = 3
NVTEX_CONTEXT_PARALLEL_AUTOMATIC = 0
NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL = 1
NVTEX_CONTEXT_PARALLEL_ALL_GATHER = 2
NVTEX_CONTEXT_PARALLEL_RING = 3
NVTEX_MOE_SCORE_SOFTMAX = 0
NVTEX_MOE_SCORE_SOFTMAX_OF_ALL = 1
NVTEX_MOE_SCORE_SIGMOID = 2
NVTEX_MOE_SCORE_SQRTSOFTPLUS = 3
NVTEX_MICROBATCH_NONE = 0
NVTEX_MICROBATCH_FIRST = 1
NVTEX_MICROBATCH_LATER = 2


class NVTEXRoleOptions(Structure):
    _fields_ = [
        ("power_2_scales", c_bool),
        ("amax_epsilon", c_float),
        ("block_dim", c_int32),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXSlotChoice(Structure):
    _fields_ = [
        ("scaling", c_int),
        ("dtype", c_int),
        ("options", NVTEXRoleOptions),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"scaling": "SlotScaling", "dtype": "DType"}


NVTEXChoose = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int, c_void_p)


class NVTEXRecipeConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("format", c_int),
        ("margin", c_float),
        ("amax_history_len", c_size_t),
        ("amax_algo", c_int),
        ("update_interval", c_uint32),
        ("reduce_amax", c_bool),
        ("input", NVTEXRoleOptions),
        ("weight", NVTEXRoleOptions),
        ("grad_output", NVTEXRoleOptions),
        ("split_accumulator_fprop", c_bool),
        ("split_accumulator_dgrad", c_bool),
        ("split_accumulator_wgrad", c_bool),
        ("backward", c_int),
        ("choose", NVTEXChoose),
        ("user", c_void_p),
        ("fp8_dpa", c_bool),
        ("nvfp4_hadamard", c_bool),
        ("nvfp4_stochastic_rounding", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"kind": "RecipeKind", "format": "Format", "amax_algo": "HistoryAlgo", "backward": "Backward"}


NVTEXAllocate = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p)
NVTEXRelease = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int, c_void_p)
NVTEXAllReduceMax = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p)


class NVTEXContextConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocator", c_void_p),
        ("allocate", NVTEXAllocate),
        ("release", NVTEXRelease),
        ("communicator", c_void_p),
        ("all_reduce_max", NVTEXAllReduceMax),
        ("multiprocessor_count", c_int32),
        ("max_unused_bytes", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXMemoryUse(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scratch", c_size_t),
        ("tape", c_size_t),
        ("persistent", c_size_t),
        ("unused", c_size_t),
        ("most_scratch", c_size_t),
        ("most_tape", c_size_t),
        ("most_persistent", c_size_t),
        ("most_at_once", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXNormConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("kind", c_int),
        ("hidden_size", c_size_t),
        ("epsilon", c_float),
        ("zero_centered_gamma", c_bool),
        ("dtype", c_int),
        ("sequence_parallel", c_bool),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"kind": "NormType", "dtype": "DType"}




class NVTEXParallelOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mode", c_int),
        ("local_scales", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"mode": "ParallelMode"}




class NVTEXParallelConfig(Structure):
    _fields_ = [
        ("tensor_parallel_size", c_size_t),
        ("sequence_parallel", c_bool),
        ("context_parallel_size", c_size_t),
        ("options", c_void_p),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXLinearConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("in_features", c_size_t),
        ("out_features", c_size_t),
        ("bias", c_bool),
        ("dtype", c_int),
        ("init_std", c_float),
        ("seed", c_uint64),
        ("parallel", NVTEXParallelConfig),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXLayerNormLinearConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("norm", NVTEXNormConfig),
        ("linear", NVTEXLinearConfig),
        ("name", c_char_p),
        ("in_features", c_size_t),
        ("out_features", c_size_t),
        ("bias", c_bool),
        ("dtype", c_int),
        ("init_std", c_float),
        ("seed", c_uint64),
        ("norm_type", c_int),
        ("norm_epsilon", c_float),
        ("parallel", NVTEXParallelConfig),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType", "norm_type": "NormType"}




class NVTEXGroupedLinearConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_gemms", c_size_t),
        ("linear", NVTEXLinearConfig),
        ("name", c_char_p),
        ("in_features", c_size_t),
        ("out_features", c_size_t),
        ("bias", c_bool),
        ("dtype", c_int),
        ("init_std", c_float),
        ("seed", c_uint64),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXLayerNormMLPConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("norm", NVTEXNormConfig),
        ("hidden_size", c_size_t),
        ("ffn_hidden_size", c_size_t),
        ("activation", c_int),
        ("clamp_limit", c_float),
        ("clamp_alpha", c_float),
        ("clamp_offset", c_float),
        ("bias", c_bool),
        ("dtype", c_int),
        ("init_std", c_float),
        ("output_init_std", c_float),
        ("seed", c_uint64),
        ("checkpoint", c_bool),
        ("parallel", NVTEXParallelConfig),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"activation": "ActivationType", "dtype": "DType"}




class NVTEXAttentionConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("num_attention_heads", c_size_t),
        ("num_gqa_groups", c_size_t),
        ("head_dim_qk", c_size_t),
        ("head_dim_v", c_size_t),
        ("attention_dropout", c_float),
        ("qkv_format", c_int),
        ("attn_mask_type", c_int),
        ("window_size_left", c_int64),
        ("window_size_right", c_int64),
        ("bottom_right_diagonal", c_bool),
        ("softmax_type", c_int),
        ("softmax_scale", c_float),
        ("dtype", c_int),
        ("checkpoint_core_attention", c_bool),
        ("qk_norm_type", c_int),
        ("qk_norm_epsilon", c_float),
        ("qk_norm_before_rope", c_bool),
        ("parallel", NVTEXParallelConfig),
        ("context_parallel_kind", c_int),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"qkv_format": "QKVFormat", "attn_mask_type": "MaskType", "softmax_type": "SoftmaxType", "dtype": "DType", "qk_norm_type": "QKNorm", "context_parallel_kind": "ContextParallelKind"}




class NVTEXMultiheadAttentionConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("hidden_size", c_size_t),
        ("attention", NVTEXAttentionConfig),
        ("input_layernorm", c_bool),
        ("norm", NVTEXNormConfig),
        ("cross_attention", c_bool),
        ("bias", c_bool),
        ("rotary_interleaved", c_bool),
        ("init_std", c_float),
        ("output_init_std", c_float),
        ("seed", c_uint64),
        ("num_attention_heads", c_size_t),
        ("num_gqa_groups", c_size_t),
        ("norm_type", c_int),
        ("norm_epsilon", c_float),
        ("dtype", c_int),
        ("qkv_format", c_int),
        ("attn_mask_type", c_int),
        ("attention_dropout", c_float),
        ("parallel", NVTEXParallelConfig),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"norm_type": "NormType", "dtype": "DType", "qkv_format": "QKVFormat", "attn_mask_type": "MaskType"}




class NVTEXMoeConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("hidden_size", c_size_t),
        ("ffn_hidden_size", c_size_t),
        ("num_experts", c_size_t),
        ("top_k", c_size_t),
        ("dtype", c_int),
        ("router_dtype", c_int),
        ("activation", c_int),
        ("clamp_limit", c_float),
        ("clamp_alpha", c_float),
        ("clamp_offset", c_float),
        ("bias", c_bool),
        ("score", c_int),
        ("num_groups", c_size_t),
        ("group_top_k", c_size_t),
        ("expert_bias", c_bool),
        ("scaling_factor", c_float),
        ("balance_coefficient", c_float),
        ("z_coefficient", c_float),
        ("shared_ffn_hidden_size", c_size_t),
        ("init_std", c_float),
        ("output_init_std", c_float),
        ("router_init_std", c_float),
        ("seed", c_uint64),
        ("expert_parallel_size", c_size_t),
        ("capacity_factor", c_float),
        ("tensor_parallel_size", c_size_t),
        ("reserved", c_uint64 * 2),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType", "router_dtype": "DType", "activation": "ActivationType", "score": "MoeScore"}




class NVTEXTransformerLayerConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("attention", NVTEXAttentionConfig),
        ("mlp", NVTEXLayerNormMLPConfig),
        ("hidden_dropout", c_float),
        ("decoder", c_bool),
        ("inter_mask_type", c_int),
        ("residual_post_layernorm", c_bool),
        ("output_layernorm", c_bool),
        ("parallel_attention_mlp", c_bool),
        ("rotary_interleaved", c_bool),
        ("hidden_size", c_size_t),
        ("ffn_hidden_size", c_size_t),
        ("num_attention_heads", c_size_t),
        ("num_gqa_groups", c_size_t),
        ("activation", c_int),
        ("norm_type", c_int),
        ("norm_epsilon", c_float),
        ("dtype", c_int),
        ("qkv_format", c_int),
        ("attn_mask_type", c_int),
        ("attention_dropout", c_float),
        ("bias", c_bool),
        ("init_std", c_float),
        ("output_init_std", c_float),
        ("seed", c_uint64),
        ("checkpoint", c_bool),
        ("parallel", NVTEXParallelConfig),
        ("experts", c_void_p),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"inter_mask_type": "MaskType", "activation": "ActivationType", "norm_type": "NormType", "dtype": "DType", "qkv_format": "QKVFormat", "attn_mask_type": "MaskType"}




class NVTEXEmbeddingConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("vocabulary_size", c_size_t),
        ("hidden_size", c_size_t),
        ("max_positions", c_size_t),
        ("scale", c_float),
        ("dtype", c_int),
        ("init_std", c_float),
        ("position_init_std", c_float),
        ("seed", c_uint64),
        ("parallel", c_void_p),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXLMHeadConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("vocabulary_size", c_size_t),
        ("hidden_size", c_size_t),
        ("tied_to", c_void_p),
        ("dtype", c_int),
        ("init_std", c_float),
        ("seed", c_uint64),
        ("ignored_target", c_int64),
        ("label_smoothing", c_float),
        ("z_loss", c_float),
        ("workspace_limit", c_size_t),
        ("parallel", c_void_p),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXLanguageModelConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocabulary_size", c_size_t),
        ("max_positions", c_size_t),
        ("num_layers", c_size_t),
        ("layer", NVTEXTransformerLayerConfig),
        ("tied_embeddings", c_bool),
        ("workspace_limit", c_size_t),
        ("reserved", c_uint64 * 3),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXRotaryConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("base", c_float),
        ("offset", c_size_t),
        ("interpolation_factor", c_float),
        ("pretrained_length", c_size_t),
        ("interleaved", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXParameterPiece(Structure):
    _fields_ = [
        ("whole", c_size_t),
        ("part", c_size_t),
        ("length", c_size_t),
        ("counts", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXParameter(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("shape", NVTEShape),
        ("dtype", c_int),
        ("value", c_void_p),
        ("quantized", c_bool),
        ("whole_shape", NVTEShape),
        ("shared_dimension", c_size_t),
        ("num_pieces", c_size_t),
        ("pieces", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXStep(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("microbatch", c_int),
        ("skip_weight_update", c_void_p),
        ("rng_state", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_kv", c_void_p),
        ("cu_seqlens_q_padded", c_void_p),
        ("cu_seqlens_kv_padded", c_void_p),
        ("max_seqlen_q", c_size_t),
        ("max_seqlen_kv", c_size_t),
        ("rotary_frequencies", c_void_p),
        ("kv_cache", c_void_p),
        ("m_splits", c_void_p),
        ("num_splits", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"microbatch": "Microbatch"}




class NVTEXKVCacheConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_batch_size", c_size_t),
        ("max_sequence_length", c_size_t),
        ("page_size", c_size_t),
        ("num_pages", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}


NVTEX_SHARDING_NONE = 0
NVTEX_SHARDING_OPTIMIZER = 2
NVTEX_SHARDING_FULL = 3
NVTEX_GRADIENTS_MEAN = 0
NVTEX_GRADIENTS_SUM = 1
NVTEX_UPDATE_ADAMW = 0
NVTEX_UPDATE_SGD = 1
NVTEX_UPDATE_MUON = 2
NVTEX_UPDATE_NONE = 3
NVTEX_MASTERS_FLOAT32 = 0
NVTEX_MASTERS_REMAINDER = 1
NVTEX_MASTERS_NONE = 2
NVTEX_SCHEDULE_CONSTANT = 0
NVTEX_SCHEDULE_LINEAR = 1
NVTEX_SCHEDULE_COSINE = 2


class NVTEXDataParallelConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("sharding", c_int),
        ("gradients", c_int),
        ("wire_dtype", c_int),
        ("bucket_bytes", c_size_t),
        ("accumulate", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"sharding": "Sharding", "gradients": "Gradients", "wire_dtype": "DType"}




class NVTEXUpdateOptions(Structure):
    _fields_ = [
        ("rule", c_int),
        ("weight_decay", c_float),
        ("learning_rate_factor", c_float),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"rule": "UpdateRule"}


NVTEXChooseUpdate = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_void_p)


class NVTEXOptimizerConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rule", c_int),
        ("learning_rate", c_float),
        ("weight_decay", c_float),
        ("choose", NVTEXChooseUpdate),
        ("user", c_void_p),
        ("beta1", c_float),
        ("beta2", c_float),
        ("epsilon", c_float),
        ("moment_dtype", c_int),
        ("momentum", c_float),
        ("nesterov", c_bool),
        ("newton_schulz_steps", c_size_t),
        ("masters", c_int),
        ("initial_masters", c_bool),
        ("schedule", c_int),
        ("warmup_steps", c_int32),
        ("total_steps", c_int32),
        ("last_rate_factor", c_float),
        ("max_norm", c_float),
        ("check_gradients", c_bool),
        ("accumulation_steps", c_int32),
        ("accumulate", c_bool),
        ("loss_scale", c_float),
        ("growth_interval", c_int32),
        ("growth_factor", c_float),
        ("backoff_factor", c_float),
        ("least_loss_scale", c_float),
        ("most_loss_scale", c_float),
        ("data_parallel", c_void_p),
        ("low_precision_gradients", c_bool),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"rule": "UpdateRule", "moment_dtype": "DType", "masters": "Masters", "schedule": "Schedule"}




class NVTEXOptimizerNumbers(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_int64),
        ("skipped", c_int64),
        ("was_skipped", c_bool),
        ("learning_rate", c_float),
        ("norm", c_float),
        ("gradient_scale", c_float),
        ("loss_scale", c_float),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXOptimizerParameter(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("options", NVTEXUpdateOptions),
        ("gradient", NVTEBasicTensor),
        ("master", NVTEBasicTensor),
        ("state", NVTEBasicTensor * 2),
        ("state_scales", NVTEBasicTensor * 2),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXTrainerConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_void_p),
        ("recipe", c_void_p),
        ("optimizer", c_void_p),
        ("data_parallel", c_void_p),
        ("graph", c_bool),
        ("reserved", c_uint64 * 4),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXTokenLoaderConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("paths", c_void_p),
        ("num_paths", c_size_t),
        ("token_bytes", c_size_t),
        ("batch", c_size_t),
        ("sequence", c_size_t),
        ("shuffle", c_bool),
        ("seed", c_uint64),
        ("rank", c_size_t),
        ("world", c_size_t),
        ("vocabulary", c_size_t),
        ("grid", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXTokenPosition(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batches", c_uint64),
        ("windows", c_uint64),
        ("seed", c_uint64),
        ("sequence", c_uint64),
        ("rows", c_uint64),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXCheckpointConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("modules", c_void_p),
        ("num_modules", c_size_t),
        ("optimizer", c_void_p),
        ("loader", c_void_p),
        ("names", c_void_p),
        ("tensors", c_void_p),
        ("num_tensors", c_size_t),
        ("communicator", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXSourceRows(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("first_row", c_size_t),
        ("num_rows", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXPretrainedParameter(Structure):
    _fields_ = [
        ("module", c_void_p),
        ("index", c_size_t),
        ("rows", c_void_p),
        ("num_rows", c_size_t),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




class NVTEXLlamaSizes(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocabulary_size", c_size_t),
        ("hidden_size", c_size_t),
        ("ffn_hidden_size", c_size_t),
        ("num_layers", c_size_t),
        ("num_attention_heads", c_size_t),
        ("num_key_value_heads", c_size_t),
        ("head_dim", c_size_t),
        ("max_positions", c_size_t),
        ("sliding_window", c_size_t),
        ("norm_epsilon", c_float),
        ("rotary_base", c_float),
        ("rotary_factor", c_float),
        ("bias", c_bool),
        ("qk_norm", c_bool),
        ("tied_embeddings", c_bool),
        ("dtype", c_int),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {"dtype": "DType"}




class NVTEXLlamaConfig(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("prefix", c_char_p),
        ("layers", c_void_p),
        ("num_layers", c_size_t),
        ("num_attention_heads", c_size_t),
        ("num_key_value_heads", c_size_t),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("head", c_void_p),
    ]
    # Fields that are enumerations, with the name of these.
    _enums_ = {}




# Of each scaling mode: lines and length of a block, padding of lines and blocks, whether column-wise data are
# transposed, whether scales of one block of all lines lie side by side, and bytes of a scale.
SCALING_MODES = {
    NVTE_DELAYED_TENSOR_SCALING: (0, 0, 1, 1, True, False, 4),
    NVTE_MXFP8_1D_SCALING: (1, 32, 128, 4, False, False, 1),
    NVTE_BLOCK_SCALING_1D: (1, 128, 1, 1, True, True, 4),
    NVTE_BLOCK_SCALING_2D: (128, 128, 1, 1, True, False, 4),
    NVTE_NVFP4_1D_SCALING: (1, 16, 128, 4, True, False, 1),
}


# Names of the values of enumerations.
ENUMS = {
    "DType": {"byte": 0, "int16": 1, "int32": 2, "int64": 3, "float32": 4, "float16": 5, "bfloat16": 6, "float8e4m3": 7, "float8e5m2": 8, "float8e8m0": 9, "float4e2m1": 10},
    "ScalingMode": {"delayed_tensor_scaling": 0, "mxfp8_1d_scaling": 1, "block_scaling_1d": 2, "block_scaling_2d": 3, "nvfp4_1d_scaling": 4, "invalid_scaling": 100},
    "NormType": {"layernorm": 0, "rmsnorm": 1},
    "RoutingMapFormat": {"bytemap": 0, "bitmap_u8": 1},
    "QBHistogramMode": {"two_kernel": 0, "fused_atomic": 1},
    "TensorParam": {"rowwisedata": 0, "columnwisedata": 1, "scale": 2, "amax": 3, "rowwisescaleinv": 4, "columnwisescaleinv": 5, "columnwiseamax": 6, "withgemmswizzledscales": 7, "rowscalednvfp4": 8, "nvfp4e4m3max": 9},
    "GroupedTensorParam": {"groupedrowwisedata": 0, "groupedcolumnwisedata": 1, "groupedscale": 2, "groupedamax": 3, "groupedrowwisescaleinv": 4, "groupedcolumnwisescaleinv": 5, "groupedcolumnwiseamax": 6, "groupedfirstdims": 7, "groupedlastdims": 8, "groupedtensoroffsets": 9, "groupedwithgemmswizzledscales": 10},
    "NVFP44Over6Mode": {"nvfp44over6disabled": 0, "nvfp44over6minmae": 1, "nvfp44over6minmse": 2},
    "QuantizationConfigAttribute": {"quantizationconfigforcepow2scales": 0, "quantizationconfigamaxepsilon": 1, "quantizationconfignooptensor": 2, "quantizationconfigfloat8blockscaletensorformat": 3, "quantizationconfigrngstate": 4, "quantizationconfignvfp42dquantization": 5, "quantizationconfigstochasticrounding": 6, "quantizationconfigusefastmath": 7, "quantizationconfignvfp44over6mode": 8, "quantizationconfignvfp44over6errusefastmath": 9, "quantizationconfigmxfp82dquantization": 10, "quantizationconfignumattributes": 11},
    "MatmulConfigAttribute": {"matmulconfigbiastensor": 0, "matmulconfigdbiastensor": 1, "matmulconfigwithgeluepilogue": 2, "matmulconfigwithdgeluepilogue": 3, "matmulconfigepilogueauxtensor": 4, "matmulconfigusesplitaccumulator": 5, "matmulconfigsmcount": 6, "matmulconfignumattributes": 7},
    "GroupedMatmulConfigAttribute": {"groupedmatmulconfigavgm": 0, "groupedmatmulconfigavgn": 1, "groupedmatmulconfigavgk": 2, "groupedmatmulconfigsmcount": 3, "groupedmatmulconfigusesplitaccumulator": 4, "groupedmatmulconfignumattributes": 5},
    "ActivationType": {"gelu": 0, "geglu": 1, "glu": 2, "silu": 3, "swiglu": 4, "relu": 5, "reglu": 6, "qgelu": 7, "qgeglu": 8, "srelu": 9, "sreglu": 10, "clamped_swiglu": 11},
    "QKVFormat": {"sbhd": 0, "bshd": 1, "thd": 2, "bshd_2sbhd": 3, "sbhd_2bshd": 4, "thd_2bshd": 5, "thd_2sbhd": 6, "bhsd": 7, "qkv_format_not_set": 8},
    "QKVLayout": {"sb3hd": 0, "sbh3d": 1, "sbhd_sb2hd": 2, "sbhd_sbh2d": 3, "sbhd_sbhd_sbhd": 4, "bs3hd": 5, "bsh3d": 6, "bshd_bs2hd": 7, "bshd_bsh2d": 8, "bshd_bshd_bshd": 9, "t3hd": 10, "th3d": 11, "thd_t2hd": 12, "thd_th2d": 13, "thd_thd_thd": 14, "sbhd_bshd_bshd": 15, "bshd_sbhd_sbhd": 16, "thd_bshd_bshd": 17, "thd_sbhd_sbhd": 18, "paged_kv_bshd_bshd_bshd": 19, "paged_kv_bshd_sbhd_sbhd": 20, "paged_kv_sbhd_bshd_bshd": 21, "paged_kv_sbhd_sbhd_sbhd": 22, "paged_kv_thd_bshd_bshd": 23, "paged_kv_thd_sbhd_sbhd": 24, "bhsd_bhsd_bhsd": 25, "qkv_layout_not_set": 26},
    "QKVLayoutGroup": {"3hd": 0, "h3d": 1, "hd_2hd": 2, "hd_h2d": 3, "hd_hd_hd": 4, "paged_kv_hd_hd_hd": 5, "sd_sd_sd": 6},
    "BiasType": {"no_bias": 0, "pre_scale_bias": 1, "post_scale_bias": 2, "alibi": 3},
    "MaskType": {"no_mask": 0, "padding_mask": 1, "causal_mask": 2, "padding_causal_mask": 3, "causal_bottom_right_mask": 4, "padding_causal_bottom_right_mask": 5},
    "SoftmaxType": {"vanilla_softmax": 0, "off_by_one_softmax": 1, "learnable_softmax": 2},
    "FusedAttnBackend": {"no_backend": -1, "f16_arbitrary_seqlen": 1, "fp8": 2},
    "FusedAttnConfigAttribute": {"fusedattnconfigistraining": 0, "fusedattnconfigdeterministic": 1, "fusedattnconfigcudagraph": 2, "fusedattnconfigreturnmaxlogit": 3, "fusedattnconfigattnmasktype": 4, "fusedattnconfigbiastype": 5, "fusedattnconfigwindowsizeleft": 6, "fusedattnconfigwindowsizeright": 7, "fusedattnconfigbottomrightdiagonal": 8, "fusedattnconfigsoftmaxtype": 9, "fusedattnconfigscalingmode": 10, "fusedattnconfigdropout": 11, "fusedattnconfigattnscale": 12, "fusedattnconfigqkvdtype": 13, "fusedattnconfigodtype": 14, "fusedattnconfigdodtype": 15, "fusedattnconfigdqkvdtype": 16, "fusedattnconfigqkvlayout": 17, "fusedattnconfigoformat": 18, "fusedattnconfigdoformat": 19, "fusedattnconfigdqkvlayout": 20, "fusedattnconfigqkvscaleinvformat": 21, "fusedattnconfigdoscaleinvformat": 22, "fusedattnconfigbatchsize": 23, "fusedattnconfignumattnheads": 24, "fusedattnconfignumgqagroups": 25, "fusedattnconfigheaddimqk": 26, "fusedattnconfigheaddimv": 27, "fusedattnconfigmaxseqlenq": 28, "fusedattnconfigmaxseqlenkv": 29, "fusedattnconfignumtokensq": 30, "fusedattnconfignumtokenskv": 31, "fusedattnconfignumpagesk": 32, "fusedattnconfignumpagesv": 33, "fusedattnconfigpagesizek": 34, "fusedattnconfigpagesizev": 35, "fusedattnconfigmaxpagesperseqk": 36, "fusedattnconfigmaxpagesperseqv": 37, "fusedattnconfigbiasbatchsize": 38, "fusedattnconfigbiasnumheads": 39, "fusedattnconfigbiasseqlenq": 40, "fusedattnconfigbiasseqlenkv": 41, "fusedattnconfignumattributes": 42},
    "FusedAttnFwdParamsAttribute": {"fusedattnfwdparamsq": 0, "fusedattnfwdparamsk": 1, "fusedattnfwdparamsv": 2, "fusedattnfwdparamsbias": 3, "fusedattnfwdparamssoftmaxoffset": 4, "fusedattnfwdparamss": 5, "fusedattnfwdparamso": 6, "fusedattnfwdparamsauxctxtensors": 7, "fusedattnfwdparamscuseqlensq": 8, "fusedattnfwdparamscuseqlenskv": 9, "fusedattnfwdparamscuseqlensqpadded": 10, "fusedattnfwdparamscuseqlenskvpadded": 11, "fusedattnfwdparamspagetablek": 12, "fusedattnfwdparamspagetablev": 13, "fusedattnfwdparamsrngstate": 14, "fusedattnfwdparamsistraining": 15, "fusedattnfwdparamscudagraph": 16, "fusedattnfwdparamsreturnmaxlogit": 17, "fusedattnfwdparamsattnmasktype": 18, "fusedattnfwdparamsbiastype": 19, "fusedattnfwdparamswindowsizeleft": 20, "fusedattnfwdparamswindowsizeright": 21, "fusedattnfwdparamsbottomrightdiagonal": 22, "fusedattnfwdparamssoftmaxtype": 23, "fusedattnfwdparamsdropout": 24, "fusedattnfwdparamsattnscale": 25, "fusedattnfwdparamsqkvlayout": 26, "fusedattnfwdparamsoformat": 27, "fusedattnfwdparamsqkvscaleinvformat": 28, "fusedattnfwdparamsmaxseqlenq": 29, "fusedattnfwdparamsmaxseqlenkv": 30, "fusedattnfwdparamsworkspace": 31, "fusedattnfwdparamsstream": 32, "fusedattnfwdparamsnumattributes": 33},
    "FusedAttnBwdParamsAttribute": {"fusedattnbwdparamsq": 0, "fusedattnbwdparamsk": 1, "fusedattnbwdparamsv": 2, "fusedattnbwdparamso": 3, "fusedattnbwdparamsdo": 4, "fusedattnbwdparamss": 5, "fusedattnbwdparamsdp": 6, "fusedattnbwdparamsauxctxtensors": 7, "fusedattnbwdparamsdq": 8, "fusedattnbwdparamsdk": 9, "fusedattnbwdparamsdv": 10, "fusedattnbwdparamsdbias": 11, "fusedattnbwdparamsdsoftmaxoffset": 12, "fusedattnbwdparamscuseqlensq": 13, "fusedattnbwdparamscuseqlenskv": 14, "fusedattnbwdparamscuseqlensqpadded": 15, "fusedattnbwdparamscuseqlenskvpadded": 16, "fusedattnbwdparamsdeterministic": 17, "fusedattnbwdparamscudagraph": 18, "fusedattnbwdparamsattnmasktype": 19, "fusedattnbwdparamsbiastype": 20, "fusedattnbwdparamswindowsizeleft": 21, "fusedattnbwdparamswindowsizeright": 22, "fusedattnbwdparamsbottomrightdiagonal": 23, "fusedattnbwdparamssoftmaxtype": 24, "fusedattnbwdparamsdropout": 25, "fusedattnbwdparamsattnscale": 26, "fusedattnbwdparamsqkvlayout": 27, "fusedattnbwdparamsoformat": 28, "fusedattnbwdparamsdoformat": 29, "fusedattnbwdparamsdqkvlayout": 30, "fusedattnbwdparamsqkvscaleinvformat": 31, "fusedattnbwdparamsdoscaleinvformat": 32, "fusedattnbwdparamsmaxseqlenq": 33, "fusedattnbwdparamsmaxseqlenkv": 34, "fusedattnbwdparamsworkspace": 35, "fusedattnbwdparamsstream": 36, "fusedattnbwdparamsnumattributes": 37},
    "CommGemmAlgoType": {"commgemmalgodefault": 0, "commgemmalgosplitp2p": 1, "commgemmalgosplitmulticast": 2, "commgemmalgoatomicp2p": 3, "commgemmalgoatomicmulticast": 4},
    "AttentionPass": {"forward": 0, "backward": 1},
    "LossReduction": {"none": 0, "sum": 1, "mean": 2},
    "Status": {"ok": 0, "invalid_argument": 1, "unsupported": 2, "device_error": 3, "internal_error": 4},
    "ErrorMode": {"return": 0, "abort": 1, "throw": 2},
    "LogLevel": {"none": 0, "error": 1, "check": 2, "dispatch": 3, "exec": 4},
    "SumOrder": {"ordered": 0, "fast": 1},
    "CallCheck": {"default": 0, "off": 1, "on": 2},
    "Transport": {"automatic": 0, "shared": 1, "nccl": 2},
    "GridGroup": {"tp": 0, "cp": 1, "dp": 2, "dp_cp": 3, "all_but_pp": 4, "ep": 5, "expert_dp": 6, "pp": 7},
    "Reduction": {"sum": 0, "max": 1},
    "RecipeKind": {"delayed_scaling": 0, "current_scaling": 1, "block_scaling": 2, "mxfp8": 3, "custom": 4, "nvfp4": 5},
    "Format": {"e4m3": 0, "e5m2": 1, "hybrid": 2},
    "HistoryAlgo": {"max": 0, "most_recent": 1},
    "Backward": {"quantized": 0, "high_precision": 1, "dequantized": 2},
    "Role": {"input": 0, "weight": 1, "grad_output": 2},
    "SlotScaling": {"high_precision": 0, "delayed": 1, "current": 2, "block": 3, "mxfp8": 4, "nvfp4": 5},
    "Lifetime": {"scratch": 0, "tape": 1, "persistent": 2},
    "Pass": {"forward": 0, "backward": 1},
    "ParallelMode": {"default": 0, "column": 1, "row": 2},
    "QKNorm": {"none": 0, "l2": 1, "rms": 2, "layer": 3},
    "ContextParallelKind": {"automatic": 0, "all_to_all": 1, "all_gather": 2, "ring": 3},
    "MoeScore": {"softmax": 0, "softmax_of_all": 1, "sigmoid": 2, "sqrtsoftplus": 3},
    "Microbatch": {"none": 0, "first": 1, "later": 2},
    "Sharding": {"none": 0, "optimizer": 2, "full": 3},
    "Gradients": {"mean": 0, "sum": 1},
    "UpdateRule": {"adamw": 0, "sgd": 1, "muon": 2, "none": 3},
    "Masters": {"float32": 0, "remainder": 1, "none": 2},
    "Schedule": {"constant": 0, "linear": 1, "cosine": 2},
}

# Result and parameters of each function.
FUNCTIONS = {
    "nvte_create_tensor": (c_void_p, [c_int]),
    "nvte_create_tensors": (None, [c_int, c_void_p, c_size_t]),
    "nvte_destroy_tensor": (None, [c_void_p]),
    "nvte_destroy_tensors": (None, [c_void_p, c_size_t]),
    "nvte_tensor_data": (c_void_p, [c_void_p]),
    "nvte_tensor_columnwise_data": (c_void_p, [c_void_p]),
    "nvte_make_shape": (NVTEShape, [c_void_p, c_size_t]),
    "nvte_tensor_shape": (NVTEShape, [c_void_p]),
    "nvte_tensor_columnwise_shape": (NVTEShape, [c_void_p]),
    "nvte_tensor_ndims": (c_size_t, [c_void_p]),
    "nvte_tensor_size": (c_size_t, [c_void_p, c_size_t]),
    "nvte_tensor_size_bytes": (c_size_t, [c_void_p]),
    "nvte_tensor_numel": (c_size_t, [c_void_p]),
    "nvte_tensor_element_size": (c_size_t, [c_void_p]),
    "nvte_tensor_element_size_bits": (c_size_t, [c_void_p]),
    "nvte_tensor_type": (c_int, [c_void_p]),
    "nvte_tensor_amax": (c_void_p, [c_void_p]),
    "nvte_tensor_scale": (c_void_p, [c_void_p]),
    "nvte_tensor_scale_inv": (c_void_p, [c_void_p]),
    "nvte_tensor_scale_inv_shape": (NVTEShape, [c_void_p]),
    "nvte_zero_tensor": (None, [c_void_p, c_void_p]),
    "nvte_set_tensor_param": (None, [c_void_p, c_int, c_void_p]),
    "nvte_get_tensor_param": (NVTEBasicTensor, [c_void_p, c_int]),
    "nvte_set_tensor_param_v2": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_get_tensor_param_v2": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_tensor_scaling_mode": (c_int, [c_void_p]),
    "nvte_tensor_pack_create": (None, [c_void_p]),
    "nvte_tensor_pack_destroy": (None, [c_void_p]),
    "nvte_create_quantization_config": (c_void_p, []),
    "nvte_get_quantization_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_quantization_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_destroy_quantization_config": (None, [c_void_p]),
    "nvte_is_non_tn_fp8_gemm_supported": (c_int32, []),
    "nvte_memset": (None, [c_void_p, c_int32, c_size_t, c_void_p]),
    "nvte_splits_to_offsets": (None, [c_void_p, c_void_p, c_size_t, c_int64, c_void_p]),
    "nvte_splits_to_offsets_2d": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_splits_to_offsets_multi": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_create_grouped_tensor": (c_void_p, [c_int, c_size_t, NVTEShape]),
    "nvte_destroy_grouped_tensor": (None, [c_void_p]),
    "nvte_set_grouped_tensor_param": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_get_grouped_tensor_param": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_grouped_tensor_num_tensors": (c_size_t, [c_void_p]),
    "nvte_grouped_tensor_type": (c_int, [c_void_p]),
    "nvte_grouped_tensor_scaling_mode": (c_int, [c_void_p]),
    "nvte_get_grouped_tensor_logical_shape": (NVTEShape, [c_void_p]),
    "nvte_copy_host_to_device_via_kernel": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_convert_pointers_to_tensor": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "nvte_get_num_compute_streams": (c_int32, []),
    "nvte_get_compute_stream": (c_void_p, [c_int32]),
    "nvte_get_compute_stream_event": (c_void_p, [c_int32]),
    "nvte_quantize": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_noop": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_v2": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_nvfp4_quantize_with_amax": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvte_multi_tensor_quantize": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_quantize_dbias": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dequantize": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_dequantize": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_requantize": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_dbias_dgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias_dgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_dbias_dsilu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias_dsilu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_dbias_drelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias_drelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_dbias_dqgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias_dqgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_dbias_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_quantize_dbias_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_transpose_with_noop": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_with_noop": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_gelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_gelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_dgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_geglu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dgeglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_silu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dsilu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_silu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_dsilu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_swiglu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dswiglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_scaled_swiglu": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "nvte_scaled_dswiglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "nvte_group_scaled_swiglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_relu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_drelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_relu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_drelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_reglu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dreglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_qgelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dqgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_qgelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_dqgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_qgeglu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dqgeglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_srelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_srelu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_sreglu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dsreglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_scaled_srelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_scaled_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_glu": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_dglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_situglu": (None, [c_void_p, c_void_p, c_float, c_float, c_void_p]),
    "nvte_dsituglu": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_void_p]),
    "nvte_scaled_situglu": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_int64, c_void_p]),
    "nvte_scaled_dsituglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float, c_int64, c_void_p]),
    "nvte_clamped_swiglu": (None, [c_void_p, c_void_p, c_float, c_float, c_void_p]),
    "nvte_clamped_dswiglu": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_void_p]),
    "nvte_clamped_swiglu_v2": (None, [c_void_p, c_void_p, c_float, c_float, c_float, c_void_p]),
    "nvte_clamped_dswiglu_v2": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_float, c_void_p]),
    "nvte_scaled_clamped_swiglu": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_float, c_int64, c_void_p]),
    "nvte_scaled_clamped_dswiglu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float, c_float, c_int64, c_void_p]),
    "nvte_group_scaled_clamped_swiglu": (None, [c_void_p, c_void_p, c_void_p, c_float, c_float, c_float, c_void_p]),
    "nvte_transpose": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_multi_cast_transpose": (None, [c_size_t, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_dbias": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_fp8_transpose_dbias": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_swap_first_dims": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_nvfp4_data_transpose": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_nvfp4_scale_transpose": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_void_p]),
    "nvte_cast_transpose_dbias_dgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dgeglu_cast_transpose": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_dbias_dsilu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dswiglu_cast_transpose": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_dbias_drelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dreglu_cast_transpose": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_dbias_dqgelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dqgeglu_cast_transpose": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cast_transpose_dbias_dsrelu": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_dsreglu_cast_transpose": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_compute_amax": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_compute_amax_with_config": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_compute_scale_from_amax": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_group_compute_amax_with_config": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_compute_scale_from_amax": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_fp8_block_scaling_compute_partial_amax": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvte_fp8_block_scaling_partial_cast": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_int, c_void_p]),
    "nvte_mxfp8_scaling_compute_partial_amax": (None, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_size_t, c_void_p]),
    "nvte_mxfp8_scaling_partial_cast": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_size_t, c_void_p]),
    "nvte_nvfp4_compute_per_tensor_scale": (None, [c_void_p, c_bool, c_void_p, c_bool, c_float, c_void_p, c_void_p]),
    "nvte_nvfp4_compute_global_scale": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_nvfp4_compute_per_block_scale": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_nvfp4_expand_scale_to_fp8": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvte_nvfp4_fused_scale": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvte_nvfp4_2d_compute_partial_amax": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvte_nvfp4_2d_partial_cast": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvte_delayed_scaling_recipe_amax_and_scale_update": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_char_p, c_int, c_float, c_void_p]),
    "nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_char_p, c_int, c_float, c_void_p]),
    "nvte_swizzle_scaling_factors": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_unswizzle_scaling_factors": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_multi_tensor_swizzle_scaling_factors": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_multi_tensor_swizzle_scaling_factors_unchecked": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_multi_tensor_unswizzle_scaling_factors": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_swizzle_grouped_scaling_factors": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_unswizzle_grouped_scaling_factors": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_swizzle_block_scaling_to_mxfp8_scaling_factors": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_topk": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32]),
    "nvte_get_qkv_layout_group": (c_int, [c_int]),
    "nvte_get_qkv_format": (c_int, [c_int]),
    "nvte_get_q_format": (c_int, [c_int]),
    "nvte_get_kv_format": (c_int, [c_int]),
    "nvte_create_fused_attn_config": (c_void_p, []),
    "nvte_destroy_fused_attn_config": (None, [c_void_p]),
    "nvte_get_fused_attn_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_fused_attn_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_create_fused_attn_fwd_params": (c_void_p, []),
    "nvte_destroy_fused_attn_fwd_params": (None, [c_void_p]),
    "nvte_get_fused_attn_fwd_params_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_fused_attn_fwd_params_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_create_fused_attn_bwd_params": (c_void_p, []),
    "nvte_destroy_fused_attn_bwd_params": (None, [c_void_p]),
    "nvte_get_fused_attn_bwd_params_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_fused_attn_bwd_params_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_cp_thd_read_half_tensor": (None, [c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_cp_thd_second_half_lse_correction": (None, [c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_cp_thd_read_second_half_lse": (None, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_cp_thd_out_correction": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_cp_thd_grad_correction": (None, [c_void_p, c_void_p, c_void_p, c_char_p, c_char_p, c_void_p]),
    "nvte_cp_thd_get_partitioned_indices": (None, [c_void_p, c_void_p, c_int, c_int, c_int, c_void_p]),
    "nvte_thd_sequence_order_to_cp_rank_order": (None, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_thd_cp_rank_order_to_sequence_order": (None, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_thd_copy_valid_tokens_from_per_split_to_rank_local": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_convert_thd_to_bshd": (None, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_convert_bshd_to_thd": (None, [c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_copy_to_kv_cache": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int, c_int, c_int, c_void_p]),
    "nvte_prepare_flash_attn_fwd": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_prepare_flash_attn_bwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_multi_tensor_transpose_to_bhsd": (None, [c_void_p, c_void_p, c_size_t, c_int, c_void_p]),
    "nvte_multi_tensor_pad_last_dim": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_populate_rng_state_async": (None, [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p]),
    "nvte_get_runtime_num_segments": (c_uint32, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_extract_seed_and_offset": (None, [c_void_p, c_int, c_void_p, c_uint64, c_void_p, c_uint64, c_uint32, c_void_p]),
    "nvte_get_fused_attn_backend_v2": (c_int, [c_void_p, c_void_p]),
    "nvte_get_fused_attn_backend": (c_int, [c_bool, c_int, c_int, c_int, c_int, c_int, c_int, c_float, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_size_t, c_int64, c_int64, c_bool, c_bool, c_bool]),
    "nvtex_fused_attn_query": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_attn_fwd_v2": (None, [c_void_p]),
    "nvte_fused_attn_fwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_bool, c_bool, c_bool, c_float, c_float, c_int, c_int, c_int, c_int, c_int, c_int, c_int64, c_int64, c_bool, c_void_p, c_void_p]),
    "nvte_fused_attn_bwd_v2": (None, [c_void_p]),
    "nvte_fused_attn_bwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_float, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int64, c_int64, c_bool, c_bool, c_bool, c_void_p, c_void_p]),
    "nvte_create_matmul_config": (c_void_p, []),
    "nvte_get_matmul_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_matmul_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_destroy_matmul_config": (None, [c_void_p]),
    "nvte_create_grouped_matmul_config": (c_void_p, []),
    "nvte_get_grouped_matmul_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t, c_void_p]),
    "nvte_set_grouped_matmul_config_attribute": (None, [c_void_p, c_int, c_void_p, c_size_t]),
    "nvte_destroy_grouped_matmul_config": (None, [c_void_p]),
    "nvte_cublas_gemm": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_void_p, c_bool, c_bool, c_int32, c_void_p]),
    "nvte_cublas_gemm_scaled": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_void_p, c_float, c_float, c_bool, c_int32, c_void_p]),
    "nvte_cublas_gemm_v2": (None, [c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cublas_atomic_gemm": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_void_p, c_bool, c_bool, c_int32, c_int32, c_int32, c_bool, c_void_p, c_void_p]),
    "nvte_multi_tensor_gemm": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_bool, c_bool, c_bool, c_void_p, c_bool, c_bool, c_int32, c_void_p]),
    "nvte_get_grouped_gemm_setup_workspace_size": (c_size_t, [c_size_t]),
    "nvte_grouped_gemm": (None, [c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_grouped_gemm_with_discrete_inputA": (None, [c_void_p, c_size_t, c_int32, c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_grouped_gemm_with_discrete_out": (None, [c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_grouped_bias_add": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_grouped_scaled_bias_add": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_convert_int32_to_int64": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_convert_int32_to_int64_with_multiplier": (None, [c_void_p, c_void_p, c_size_t, c_int64, c_void_p]),
    "nvte_compute_grouped_tensor_offsets": (None, [c_void_p, c_void_p, c_size_t, c_int64, c_void_p]),
    "nvte_scaled_softmax_forward": (None, [c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_softmax_backward": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_masked_softmax_forward": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_masked_softmax_backward": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_upper_triang_masked_softmax_forward": (None, [c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_upper_triang_masked_softmax_backward": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_aligned_causal_masked_softmax_forward": (None, [c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_scaled_aligned_causal_masked_softmax_backward": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_dropout_fwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_dropout_bwd": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvtex_bias_dropout_add": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_void_p]),
    "nvte_fused_rope_forward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_fused_rope_backward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_fused_qkv_rope_forward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_fused_qkv_rope_backward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_fused_topk_with_score_function_forward": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_v2": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_with_indices": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_qb_v2": (None, [c_void_p, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_qb_v2_unchecked": (None, [c_void_p, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_qb_with_indices": (None, [c_void_p, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_fused_topk_with_score_function_forward_qb_with_indices_unchecked": (None, [c_void_p, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvte_qb_histogram_accumulate": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_qb_histogram_accumulate_unchecked": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_backward": (None, [c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_backward_v2": (None, [c_void_p, c_int, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p]),
    "nvte_fused_topk_with_score_function_backward_with_indices": (None, [c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_float, c_int32, c_void_p, c_void_p]),
    "nvte_fused_score_for_moe_aux_loss_forward": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_score_for_moe_aux_loss_forward_v2": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "nvte_fused_score_for_moe_aux_loss_backward": (None, [c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p]),
    "nvte_fused_moe_aux_loss_forward": (None, [c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_moe_aux_loss_forward_graph_safe": (None, [c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_float, c_void_p, c_void_p, c_void_p]),
    "nvte_fused_moe_aux_loss_backward": (None, [c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p]),
    "nvte_layernorm_fwd": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_layernorm_bwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_rmsnorm_fwd": (None, [c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_rmsnorm_bwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_rmsnorm_bwd_add": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_enable_cudnn_norm_fwd": (None, [c_bool]),
    "nvte_enable_cudnn_norm_bwd": (None, [c_bool]),
    "nvte_enable_zero_centered_gamma_in_weight_dtype": (None, [c_bool]),
    "nvtex_residual_layernorm_fwd": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvtex_residual_rmsnorm_fwd": (None, [c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvtex_layernorm_bwd_add": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_bool, c_void_p]),
    "nvte_multi_padding": (None, [c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_multi_unpadding": (None, [c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_permute": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_unpermute": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_int32, c_void_p]),
    "nvte_device_radix_sort_pairs": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "nvte_multi_tensor_l2norm_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_void_p]),
    "nvte_multi_tensor_unscale_l2norm_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32, c_void_p]),
    "nvte_multi_tensor_adam_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_float, c_float, c_float, c_int32, c_int32, c_int32, c_float, c_void_p]),
    "nvte_multi_tensor_adam_param_remainder_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_float, c_float, c_float, c_int32, c_int32, c_int32, c_float, c_void_p]),
    "nvte_multi_tensor_adam_fp8_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_float, c_float, c_float, c_int32, c_int32, c_int32, c_float, c_int, c_void_p]),
    "nvte_multi_tensor_adam_capturable_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_float, c_float, c_float, c_void_p, c_int32, c_int32, c_float, c_void_p, c_void_p]),
    "nvte_multi_tensor_adam_capturable_master_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_float, c_float, c_float, c_void_p, c_int32, c_int32, c_float, c_void_p, c_void_p]),
    "nvte_multi_tensor_sgd_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_float, c_float, c_float, c_int32, c_int32, c_int32, c_float, c_void_p]),
    "nvte_multi_tensor_scale_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_void_p]),
    "nvte_multi_tensor_scale_tensor_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p]),
    "nvte_multi_tensor_compute_scale_and_scale_inv_cuda": (None, [c_int32, c_void_p, c_void_p, c_size_t, c_size_t, c_float, c_int32, c_float, c_void_p]),
    "nvte_multi_tensor_compute_scale_inv_e8m0_cuda": (None, [c_int32, c_void_p, c_size_t, c_size_t, c_void_p]),
    "nvte_group_amax": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvte_group_amax_graph_safe": (None, [c_void_p, c_void_p, c_void_p]),
    "nvte_hadamard_transform": (None, [c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_hadamard_transform_amax": (None, [c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_group_hadamard_transform_amax": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p]),
    "nvte_group_hadamard_transform_amax_graph_safe": (None, [c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "nvte_hadamard_transform_cast_fusion_columnwise": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_quantize_with_hadamard_transform": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_group_hadamard_transform_cast_fusion_columnwise": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvte_group_hadamard_transform_cast_fusion": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "nvte_group_hadamard_transform_cast_fusion_graph_safe": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_cusolvermp_ctx_create": (c_void_p, [c_void_p, c_int32, c_int32]),
    "nvte_cusolvermp_ctx_destroy": (None, [c_void_p]),
    "nvte_newton_schulz": (None, [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
    "nvte_comm_gemm_ctx_create": (c_void_p, [c_void_p, c_int32, c_int32]),
    "nvte_comm_gemm_ctx_destroy": (None, [c_void_p]),
    "nvte_comm_gemm_numroc": (c_int64, [c_void_p, c_int64]),
    "nvte_all_gather_gemm": (None, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_bool, c_int32, c_void_p, c_int]),
    "nvte_gemm_reduce_scatter": (None, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_bool, c_int32, c_void_p, c_int]),
    "nvte_gemm_all_reduce": (None, [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_bool, c_bool, c_bool, c_int32, c_void_p, c_int]),
    "nvte_ep_initialize": (None, [c_void_p, c_void_p]),
    "nvte_ep_shutdown": (None, []),
    "nvte_ep_handle_mem_size": (c_size_t, [c_void_p]),
    "nvte_ep_prepare": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_ep_dispatch": (None, [c_void_p, c_void_p, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p]),
    "nvte_ep_prepare_and_dispatch": (None, [c_void_p, c_void_p, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvte_ep_combine": (None, [c_void_p, c_void_p, NVTECommWindow, c_void_p, c_void_p]),
    "nvte_ep_dispatch_bwd": (None, [c_void_p, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p, c_void_p, c_void_p]),
    "nvte_ep_combine_bwd": (None, [c_void_p, c_void_p, NVTECommWindow, c_void_p, NVTECommWindow, c_void_p]),
    "nvtex_cross_entropy_options_init": (None, [c_void_p, c_size_t]),
    "nvtex_cross_entropy_forward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_cross_entropy_backward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_cross_entropy_forward_backward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_cross_entropy_partial": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_cross_entropy_combine": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_linear_cross_entropy": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvtex_embedding_forward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_size_t, c_size_t, c_size_t, c_void_p]),
    "nvtex_embedding_backward": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_bool, c_float, c_size_t, c_size_t, c_void_p, c_void_p]),
    "nvtex_sample_tokens": (None, [c_void_p, c_void_p, c_void_p, c_float, c_size_t, c_float, c_void_p]),
    "nvtex_last_status": (c_int, []),
    "nvtex_last_error": (c_char_p, []),
    "nvtex_clear_error": (None, []),
    "nvtex_error_count": (c_uint64, []),
    "nvtex_take_error": (c_char_p, [c_uint64]),
    "nvtex_set_error_mode": (c_int, [c_int]),
    "nvtex_set_log": (None, [c_void_p, c_int, c_void_p]),
    "nvtex_set_drop_in": (c_bool, [c_bool]),
    "nvtex_version": (c_char_p, []),
    "nvtex_version_number": (c_int32, []),
    "nvtex_backend_name": (c_char_p, []),
    "nvtex_set_num_threads": (None, [c_size_t]),
    "nvtex_num_threads": (c_size_t, []),
    "nvtex_malloc": (c_void_p, [c_size_t]),
    "nvtex_free": (None, [c_void_p]),
    "nvtex_memcpy_to_device": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_memcpy_to_host": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_memcpy_on_device": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_array_create": (c_void_p, [c_int, c_void_p, c_size_t]),
    "nvtex_array_destroy": (None, [c_void_p]),
    "nvtex_array_set": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_array_get": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_stream_create": (c_void_p, []),
    "nvtex_stream_destroy": (None, [c_void_p]),
    "nvtex_stream_synchronize": (None, [c_void_p]),
    "nvtex_graph_begin": (None, [c_void_p]),
    "nvtex_graph_end": (c_void_p, [c_void_p]),
    "nvtex_graph_replay": (None, [c_void_p, c_void_p]),
    "nvtex_graph_destroy": (None, [c_void_p]),
    "nvtex_communicator_create_local": (None, [c_int32, c_void_p, c_void_p]),
    "nvtex_communicator_create_shared": (c_void_p, [c_char_p, c_int32, c_int32, c_void_p]),
    "nvtex_communicator_create_callbacks": (c_void_p, [c_void_p, c_int32, c_int32, c_void_p]),
    "nvtex_communicator_nccl_unique_id": (None, [c_void_p]),
    "nvtex_communicator_create_nccl": (c_void_p, [c_void_p, c_int32, c_int32, c_void_p]),
    "nvtex_communicator_create_nccl_shared": (c_void_p, [c_char_p, c_int32, c_int32, c_void_p]),
    "nvtex_communicator_create_from_nccl": (c_void_p, [c_void_p, c_void_p]),
    "nvtex_communicator_from_environment": (c_void_p, [c_void_p]),
    "nvtex_communicator_split": (c_void_p, [c_void_p, c_int32, c_int32, c_char_p]),
    "nvtex_communicator_rank": (c_int32, [c_void_p]),
    "nvtex_communicator_size": (c_int32, [c_void_p]),
    "nvtex_communicator_name": (c_char_p, [c_void_p]),
    "nvtex_communicator_status": (c_char_p, [c_void_p]),
    "nvtex_communicator_abort": (None, [c_void_p, c_char_p]),
    "nvtex_communicator_destroy": (None, [c_void_p]),
    "nvtex_grid_create": (c_void_p, [c_void_p, c_void_p]),
    "nvtex_grid_create_from_communicators": (c_void_p, [c_void_p]),
    "nvtex_grid_communicator": (c_void_p, [c_void_p, c_int]),
    "nvtex_grid_destroy": (None, [c_void_p]),
    "nvtex_all_gather": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_char_p, c_void_p]),
    "nvtex_reduce_scatter": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_char_p, c_void_p]),
    "nvtex_all_reduce": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_char_p, c_void_p]),
    "nvtex_all_to_all": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_char_p, c_void_p]),
    "nvtex_broadcast": (None, [c_void_p, c_void_p, c_size_t, c_int, c_int32, c_char_p, c_void_p]),
    "nvtex_barrier": (None, [c_void_p, c_char_p, c_void_p]),
    "nvtex_exchange": (None, [c_void_p, c_void_p, c_size_t, c_char_p, c_void_p]),
    "nvtex_communicator_as_nccl": (c_void_p, [c_void_p]),
    "nvtex_recipe_config_init": (None, [c_void_p, c_size_t, c_int]),
    "nvtex_recipe_create": (c_void_p, [c_void_p]),
    "nvtex_recipe_destroy": (None, [c_void_p]),
    "nvtex_context_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_context_create": (c_void_p, [c_void_p]),
    "nvtex_context_destroy": (None, [c_void_p]),
    "nvtex_context_set_grid": (None, [c_void_p, c_void_p]),
    "nvtex_context_trim": (c_size_t, [c_void_p, c_size_t]),
    "nvtex_context_memory": (None, [c_void_p, c_void_p]),
    "nvtex_context_begin": (None, [c_void_p, c_void_p, c_uint32, c_void_p]),
    "nvtex_context_end": (None, [c_void_p]),
    "nvtex_context_forward_update": (None, [c_void_p, c_void_p]),
    "nvtex_context_backward_update": (None, [c_void_p, c_void_p]),
    "nvtex_context_delayed_scaling": (c_size_t, [c_void_p, c_char_p, c_int, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_context_state_size": (c_size_t, [c_void_p]),
    "nvtex_context_save": (c_size_t, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_context_load": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_norm_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_norm_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_linear_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_linear_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_layernorm_linear_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_layernorm_linear_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_grouped_linear_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_grouped_linear_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_layernorm_mlp_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_layernorm_mlp_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_attention_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_attention_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_multihead_attention_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_multihead_attention_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_transformer_layer_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_transformer_layer_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_moe_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_moe_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_embedding_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_embedding_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_lm_head_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_lm_head_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_sequential_create": (c_void_p, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "nvtex_language_model_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_language_model_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_rotary_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_rotary_frequencies": (None, [c_void_p, c_void_p, c_void_p]),
    "nvtex_module_destroy": (None, [c_void_p]),
    "nvtex_module_num_parameters": (c_size_t, [c_void_p]),
    "nvtex_module_parameter": (None, [c_void_p, c_size_t, c_void_p]),
    "nvtex_module_set_parameter": (None, [c_void_p, c_size_t, c_void_p]),
    "nvtex_module_assign_parameter": (None, [c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvtex_module_initial_value": (None, [c_void_p, c_size_t, c_void_p, c_size_t]),
    "nvtex_module_precision": (None, [c_void_p, c_size_t, c_int, c_void_p]),
    "nvtex_module_set_gradient": (None, [c_void_p, c_size_t, c_void_p, c_bool]),
    "nvtex_step_init": (None, [c_void_p, c_size_t]),
    "nvtex_module_forward": (None, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "nvtex_module_backward": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "nvtex_tape_destroy": (None, [c_void_p]),
    "nvtex_kv_cache_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_kv_cache_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_kv_cache_destroy": (None, [c_void_p]),
    "nvtex_kv_cache_step": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_kv_cache_length": (c_size_t, [c_void_p, c_size_t]),
    "nvtex_kv_cache_truncate": (None, [c_void_p, c_size_t, c_size_t]),
    "nvtex_kv_cache_reorder": (None, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_context_parallel_split": (None, [c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvtex_context_parallel_merge": (None, [c_void_p, c_void_p, c_void_p, c_int, c_void_p]),
    "nvtex_data_parallel_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_data_parallel_create": (c_void_p, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_data_parallel_destroy": (None, [c_void_p]),
    "nvtex_data_parallel_reduce": (None, [c_void_p, c_void_p]),
    "nvtex_data_parallel_gather": (None, [c_void_p, c_void_p]),
    "nvtex_data_parallel_release": (None, [c_void_p, c_void_p]),
    "nvtex_data_parallel_part": (None, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvtex_optimizer_config_init": (None, [c_void_p, c_size_t, c_int]),
    "nvtex_optimizer_create": (c_void_p, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "nvtex_optimizer_destroy": (None, [c_void_p]),
    "nvtex_optimizer_zero_grad": (None, [c_void_p, c_void_p]),
    "nvtex_optimizer_step": (None, [c_void_p, c_void_p]),
    "nvtex_optimizer_set_learning_rate": (None, [c_void_p, c_float, c_void_p]),
    "nvtex_optimizer_loss_scale": (c_void_p, [c_void_p]),
    "nvtex_optimizer_numbers": (None, [c_void_p, c_void_p, c_void_p]),
    "nvtex_optimizer_num_parameters": (c_size_t, [c_void_p]),
    "nvtex_optimizer_parameter": (None, [c_void_p, c_size_t, c_void_p]),
    "nvtex_trainer_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_trainer_create": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "nvtex_trainer_destroy": (None, [c_void_p]),
    "nvtex_trainer_step": (None, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvtex_trainer_loss": (c_float, [c_void_p, c_void_p]),
    "nvtex_trainer_optimizer": (c_void_p, [c_void_p]),
    "nvtex_trainer_data_parallel": (c_void_p, [c_void_p]),
    "nvtex_token_loader_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_token_loader_create": (c_void_p, [c_void_p]),
    "nvtex_token_loader_destroy": (None, [c_void_p]),
    "nvtex_token_loader_epoch_batches": (c_size_t, [c_void_p]),
    "nvtex_token_loader_next": (None, [c_void_p, c_void_p, c_size_t]),
    "nvtex_token_loader_next_on_device": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_token_loader_positions": (None, [c_void_p, c_void_p, c_void_p]),
    "nvtex_token_loader_position": (None, [c_void_p, c_void_p]),
    "nvtex_token_loader_seek": (None, [c_void_p, c_void_p]),
    "nvtex_checkpoint_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_checkpoint_save": (None, [c_char_p, c_void_p, c_void_p]),
    "nvtex_checkpoint_load": (None, [c_char_p, c_void_p, c_void_p]),
    "nvtex_pretrained_load": (None, [c_char_p, c_void_p, c_size_t, c_void_p, c_void_p]),
    "nvtex_llama_sizes": (None, [c_char_p, c_void_p]),
    "nvtex_llama_config_init": (None, [c_void_p, c_size_t]),
    "nvtex_llama_load": (None, [c_char_p, c_void_p, c_void_p, c_void_p]),
    "nvtex_llama_create": (c_void_p, [c_void_p, c_char_p, c_int, c_void_p]),
}
