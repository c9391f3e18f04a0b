package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const model = "../../../models/tiny-qwen3moe"

// reference is a prompt and what an independent evaluation of the model makes of it.
type reference struct {
	Domain string `json:"domain"`
	Prompt []int  `json:"prompt_bytes"`
	Greedy []int  `json:"greedy"`
}

func references(t *testing.T) []reference {
	t.Helper()
	text, err := os.ReadFile(model + "/reference/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []reference
	if err := json.Unmarshal(text, &all); err != nil || len(all) != 8 {
		t.Fatal(len(all), err)
	}
	return all
}

func optionsFor(all []reference, budget string) *options {
	o := &options{model: model, tokens: 64, budget: budget}
	for _, r := range all {
		prompt := make([]byte, len(r.Prompt))
		for i, b := range r.Prompt {
			prompt[i] = byte(b)
		}
		o.prompts = append(o.prompts, prompt)
	}
	return o
}

var runs = map[string]*result{}

// generated is what comes out of the prompts with a budget; it is computed once.
func generated(t *testing.T, all []reference, budget string) *result {
	t.Helper()
	if runs[budget] == nil {
		r, err := run(optionsFor(all, budget), nil)
		if err != nil {
			t.Fatal(err)
		}
		runs[budget] = r
	}
	return runs[budget]
}

func TestTokensAreTheReferences(t *testing.T) {
	all := references(t)
	for _, budget := range []string{"100%", "25%"} {
		r := generated(t, all, budget)
		for i, ref := range all {
			if fmt.Sprint(r.outputs[i]) != fmt.Sprint(ref.Greedy) {
				t.Errorf("%s, %s: %v, want %v", budget, ref.Domain, r.outputs[i], ref.Greedy)
			}
		}
		if r.stats.Routed == 0 || budget != "100%" && r.stats.Misses < 512 {
			t.Errorf("%s: %+v", budget, r.stats)
		}
	}
}

// The tool that is written in C, where its path is given, makes the same tokens of the same prompts.
func TestTokensAreThoseOfTheCTool(t *testing.T) {
	tool := os.Getenv("MOEPAGE_GENERATE")
	if tool == "" {
		t.Skip("MOEPAGE_GENERATE does not name moepage-generate")
	}
	all := references(t)
	for _, budget := range []string{"100%", "25%"} {
		arguments := []string{"--model", model, "--budget", budget, "--max-tokens", "64", "--json"}
		for _, r := range all {
			arguments = append(arguments, "--tokens", strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Prompt), " ", ","), "[]"))
		}
		text, err := exec.Command(tool, arguments...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var theirs struct{ Outputs []struct{ Tokens []int } }
		if err := json.Unmarshal(text, &theirs); err != nil || len(theirs.Outputs) != len(all) {
			t.Fatal(len(theirs.Outputs), err)
		}
		for i, ours := range generated(t, all, budget).outputs {
			if fmt.Sprint(ours) != fmt.Sprint(theirs.Outputs[i].Tokens) {
				t.Errorf("%s, %s: %v, the tool has %v", budget, all[i].Domain, ours, theirs.Outputs[i].Tokens)
			}
		}
	}
}

// A prompt that takes several steps of prefill goes on as one that was fed token by token would.
func TestLongPromptsAreFedInPieces(t *testing.T) {
	text, err := os.ReadFile(model + "/eval/en.bin")
	if err != nil {
		t.Fatal(err)
	}
	long := text[:2*stepTokens+44]
	a, err := run(&options{model: model, prompts: [][]byte{long}, tokens: 8, budget: "50%"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	grown := append(append([]byte(nil), long...), byte(a.outputs[0][0]))
	b, err := run(&options{model: model, prompts: [][]byte{grown}, tokens: 7, budget: "10%"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(a.outputs[0][1:]) != fmt.Sprint(b.outputs[0]) {
		t.Errorf("%v, then %v", a.outputs[0], b.outputs[0])
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	prompt := [][]byte{[]byte("a")}
	for name, o := range map[string]*options{
		"no such model":   {model: "no-such-directory", prompts: prompt, tokens: 1, budget: "100%"},
		"no tokens":       {model: model, prompts: prompt, tokens: 0, budget: "100%"},
		"a long context":  {model: model, prompts: prompt, tokens: 1025, budget: "100%"},
		"no budget":       {model: model, prompts: prompt, tokens: 1, budget: ""},
		"nothing of it":   {model: model, prompts: prompt, tokens: 1, budget: "0%"},
		"not a number":    {model: model, prompts: prompt, tokens: 1, budget: "NaN%"},
		"an unknown unit": {model: model, prompts: prompt, tokens: 1, budget: "6X"},
		"too many bytes":  {model: model, prompts: prompt, tokens: 1, budget: "99999999999G"},
		"too few bytes":   {model: model, prompts: prompt, tokens: 1, budget: "64K"},
	} {
		if _, err := run(o, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := new(prompts).Set(""); err == nil {
		t.Error("an empty prompt is accepted")
	}
}

func TestTextAndJSONAreShown(t *testing.T) {
	o := optionsFor(references(t)[:2], "25%")
	o.tokens = 8
	var text, object bytes.Buffer
	if err := show(o, false, &text); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text.String(), "ous sign") || !strings.Contains(text.String(), "hit rate") {
		t.Errorf("%q", text.String())
	}
	if err := show(o, true, &object); err != nil {
		t.Fatal(err)
	}
	var parsed struct{ Outputs [][]int }
	err := json.Unmarshal(object.Bytes(), &parsed)
	if err != nil || len(parsed.Outputs) != 2 || len(parsed.Outputs[0]) != 8 {
		t.Errorf("%s", object.String())
	}
}
