"""Pages the experts of Hugging Face transformers models: see `page_experts`.

    from moepage.transformers import page_experts

    model = AutoModelForCausalLM.from_pretrained(folder)
    with page_experts(model, budget="25%") as paged:
        model.generate(...)
        print(paged.hit_rate)
"""
from .paging import PagedExperts, page_experts

__all__ = ["PagedExperts", "page_experts"]
