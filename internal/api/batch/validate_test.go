package batch

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func TestSuccessPolicy(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		want   []string
	}{
		"count":      {"{rules: [{succeededCount: 5}]}", nil},
		"indexes":    {`{rules: [{succeededIndexes: "0,2-4", succeededCount: 4}]}`, nil},
		"no indexes": {`{rules: [{succeededIndexes: ""}]}`, nil},
		"no rules":   {"{}", []string{"p.rules: Required value: at least one rules must be specified when the successPolicy is specified"}},
		"empty rule": {"{rules: [{}]}", []string{"p.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified"}},
		"negative":   {"{rules: [{succeededCount: -1}]}", []string{"p.rules[0].succeededCount: Invalid value: -1: must be greater than or equal to 0"}},
		"too many":   {"{rules: [{succeededCount: 6}]}", []string{"p.rules[0].succeededCount: Invalid value: 6: must be less than or equal to 5 (the number of specified completions)"}},
		"more than indexes": {`{rules: [{succeededIndexes: "1-3", succeededCount: 4}]}`,
			[]string{"p.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)"}},
		"no number": {`{rules: [{succeededIndexes: "x"}]}`, []string{`p.rules[0].succeededIndexes: Invalid value: "x": error parsing succeededIndexes: cannot convert string to integer for index: "x"`}},
		"too large": {`{rules: [{succeededIndexes: "3-5"}]}`, []string{`p.rules[0].succeededIndexes: Invalid value: "3-5": error parsing succeededIndexes: too large index: "5"`}},
		"falling":   {`{rules: [{succeededIndexes: "2,1"}]}`, []string{`p.rules[0].succeededIndexes: Invalid value: "2,1": error parsing succeededIndexes: non-increasing order, previous: 2, current: 1`}},
		"empty interval": {`{rules: [{succeededIndexes: "2-2"}]}`,
			[]string{`p.rules[0].succeededIndexes: Invalid value: "2-2": error parsing succeededIndexes: non-increasing order, previous: 2, current: 2`}},
		"three ends": {`{rules: [{succeededIndexes: "1-2-3"}]}`,
			[]string{`p.rules[0].succeededIndexes: Invalid value: "1-2-3": error parsing succeededIndexes: the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'`}},
	} {
		policy := &batchv1.SuccessPolicy{}
		if err := yaml.UnmarshalStrict([]byte(test.policy), policy); err != nil {
			t.Fatal(err)
		}
		mode, completions := batchv1.IndexedCompletion, int32(5)
		errs := validateSuccessPolicy(&batchv1.JobSpec{CompletionMode: &mode, Completions: &completions, SuccessPolicy: policy}, field.NewPath("p"))
		var got []string
		for _, e := range errs {
			got = append(got, e.Error())
		}
		if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
			t.Errorf("%s: got:\n  %s\nwant:\n  %s", name, strings.Join(got, "\n  "), strings.Join(test.want, "\n  "))
		}
	}
}
