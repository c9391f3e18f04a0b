package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
)

// The structs that the library fills in and Go code gets a copy of.
var filled = []struct{ c, name, doc string }{
	{"moepage_device_info", "DeviceInfo", "is what a device is, and what it holds now"},
	{"moepage_model_info", "ModelInfo", "is the shape of a model"},
	{"moepage_form_info", "FormInfo", "is how a model stores its experts in one form"},
	{"moepage_pack_stats", "PackStats", "is what WritePack wrote"},
	{"moepage_expert_pool_info", "ExpertPoolInfo", "is what an expert pool holds and has done"},
	{"moepage_residency", "Residency", "is where an expert was"},
	{"moepage_kv_pool_info", "KVPoolInfo", "is what a KV pool holds and has done"},
	{"moepage_kv_admission", "KVAdmission", "is the answer of KVPool.Admit"},
	{"moepage_controller_report", "ControllerReport", "is what one tick did"},
	{"moepage_controller_info", "ControllerInfo", "is what a controller has measured"},
	{"moepage_paged_info", "PagedInfo", "is a PagedTensor's memory, and what it has done"},
	{"moepage_predictor_info", "PredictorInfo", "is what a predictor is and has learnt"},
	{"moepage_session_stats", "SessionStats", "is what one step, or all of them, did"},
	{"moepage_prefetch_info", "PrefetchInfo", "is what prefetching for a layer has brought"},
}

// Fields that have a Go type of their own, by struct and field or by field alone.
var typed = map[string]string{
	"form": "Form", "bus_form": "Form", "hi_form": "Form", "lo_form": "Form", "slot_form": "Form",
	"mode": "ControlMode", "outcome": "ControlOutcome",
	"moepage_residency.state": "ExpertState", "activation": "Activation",
	"ffn_supported": "bool", "present": "bool", "fits": "bool",
}

// Words of C names that Go spells otherwise.
var spelled = map[string]string{"kv": "KV", "moe": "MoE", "id": "ID", "ffn": "FFN", "ns": "NS"}

func goName(c string) string {
	var out strings.Builder
	for _, word := range strings.Split(c, "_") {
		if special := spelled[word]; special != "" {
			out.WriteString(special)
		} else {
			out.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return out.String()
}

// member says what a C field is in Go: its name, its type, and how it is had from `c`.
func member(of string, f field) (name, goType, value string, err error) {
	from := "c." + f.name
	own := typed[of+"."+f.name]
	if own == "" {
		own = typed[f.name]
	}
	switch {
	case own == "bool":
		return goName(f.name), own, from + " != 0", nil
	case own != "":
		return goName(f.name), own, own + "(" + from + ")", nil
	case f.ctype == "uint64_t" && strings.HasSuffix(f.name, "_ns"):
		return goName(strings.TrimSuffix(f.name, "_ns")), "time.Duration", "time.Duration(" + from + ")", nil
	case f.ctype == "const char *":
		return goName(f.name), "string", "C.GoString(" + from + ")", nil
	case strings.HasPrefix(f.ctype, "char["):
		return goName(f.name), "string", "C.GoString(&" + from + "[0])", nil
	case f.ctype == "uint64_t[8]":
		return goName(f.name), "[8]uint64", "*(*[8]uint64)(unsafe.Pointer(&" + from + "))", nil
	case f.ctype == "float":
		return goName(f.name), "float32", "float32(" + from + ")", nil
	case f.ctype == "double":
		return goName(f.name), "float64", "float64(" + from + ")", nil
	case f.ctype == "uint32_t" || f.ctype == "uint64_t" || f.ctype == "int32_t":
		plain := strings.TrimSuffix(f.ctype, "_t")
		return goName(f.name), plain, plain + "(" + from + ")", nil
	}
	return "", "", "", fmt.Errorf("%s.%s: no rule for a field of type %q", of, f.name, f.ctype)
}

// infos is the Go source of the structs that the library fills in.
func infos(abi *listing) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(generated + "package moepage\n\n// #include \"moepage.h\"\nimport \"C\"\n\n" +
		"import (\n\"time\"\n\"unsafe\"\n)\n")
	for _, f := range filled {
		s := abi.find(f.c)
		if s == nil {
			return nil, fmt.Errorf("%s: no such struct in the listing", f.c)
		}
		var members, values bytes.Buffer
		for _, field := range s.fields {
			if field.name == "struct_size" || field.name == "reserved" {
				continue
			}
			name, goType, value, err := member(s.name, field)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&members, "%s %s\n", name, goType)
			fmt.Fprintf(&values, "%s: %s,\n", name, value)
		}
		fmt.Fprintf(&out, "\n// %s %s: %s of moepage.h, field by field.\ntype %s struct {\n%s}\n",
			f.name, f.doc, f.c, f.name, &members)
		fmt.Fprintf(&out, "\nfunc new%s(c *C.%s) %s {\nreturn %s{\n%s}\n}\n",
			f.name, f.c, f.name, f.name, &values)
	}
	return format.Source(out.Bytes())
}
