quant_stage:
  quant_modifiers:
    QuantizationModifier:
      ignore: ["features.0", "features.3", "features.7"]
      config_groups:
        group_0:  # int8/row
          targets: ["head"]
          weights: {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true, "dynamic": false}
