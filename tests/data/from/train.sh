#!/bin/bash
# A script as people have them: variables, an array, a launcher.
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
GPUS=${GPUS:-8}
MODEL="meta-llama/Llama-3.1-8B"
BATCH=2 # sequences of a GPU
TRAIN_ARGS=(
    --model_name_or_path "$MODEL"
    --per_device_train_batch_size ${BATCH}
    --max_seq_length 4096
    --output_dir "out/run 1"
)
mkdir -p out && torchrun --nproc_per_node $GPUS --master_port=29500 \
    train.py "${TRAIN_ARGS[@]}" \
    --gradient_checkpointing True --bf16 True \
    --attn_implementation flash_attention_2 \
    --data_file "$(pwd)/data.json" --own_switch False
