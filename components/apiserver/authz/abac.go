package authz

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/json"
)

// abac is the authorizer of the mode ABAC: a list of policies from a file with one JSON object per
// line.
//
// https://kubernetes.io/docs/reference/access-authn-authz/abac/
type abac []abacPolicy

// abacPolicy is one line of a policy file. An empty field for the resource or path matches nothing, "*" matches
// everything. User and group must both match if both are set.
type abacPolicy struct {
	metav1.TypeMeta `json:",inline"`
	Spec            abacSpec `json:"spec"`
}

// abacSpec is the user or group that one line of a policy file applies to, and the resource or path that it grants
// access to. Readonly grants only get, list and watch. NonResourcePath is for paths outside of the API, and may end
// with "*".
type abacSpec struct {
	User            string `json:"user,omitempty"`
	Group           string `json:"group,omitempty"`
	Readonly        bool   `json:"readonly,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	NonResourcePath string `json:"nonResourcePath,omitempty"`
}

// legacyPolicy is a line of a policy file in the format without apiVersion and kind. An empty field matches
// everything.
type legacyPolicy struct {
	metav1.TypeMeta `json:",inline"`
	User            string `json:"user,omitempty"`
	Group           string `json:"group,omitempty"`
	Readonly        bool   `json:"readonly,omitempty"`
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
}

// convert returns the policy in the current format: an empty namespace or resource becomes "*", and so does the group
// if user and group are empty. Without namespace and resource, the policy also applies to all paths outside of the
// API.
func (f legacyPolicy) convert() abacPolicy {
	spec := abacSpec{User: f.User, Group: f.Group, Readonly: f.Readonly, APIGroup: "*", Resource: f.Resource, Namespace: f.Namespace}
	if f.User == "" && f.Group == "" {
		spec.Group = "*"
	}
	if f.Namespace == "" {
		spec.Namespace = "*"
	}
	if f.Resource == "" {
		spec.Resource = "*"
	}
	if f.Namespace == "" && f.Resource == "" {
		spec.NonResourcePath = "*"
	}
	return abacPolicy{Spec: spec}
}

const abacVersion = "abac.authorization.kubernetes.io/v1beta1"

// loadABAC reads the policy file of --authorization-policy-file. It returns an error if path is empty or a line is
// invalid.
func loadABAC(path string) (abac, error) {
	if path == "" {
		return nil, errors.New("authorization-mode ABAC's authorization policy file not passed")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the policies of ABAC: %w", err)
	}
	return parseABAC(data)
}

// parseABAC parses a policy file with one JSON object per line. It ignores empty lines and lines that begin with #.
// It returns an error, with the line number, for an invalid line.
func parseABAC(data []byte) (abac, error) {
	var out abac
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		p, err := parsePolicy(line)
		if err != nil {
			return nil, fmt.Errorf("policy of ABAC in line %d: %w", n, err)
		}
		out = append(out, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the policies of ABAC: %w", err)
	}
	return out, nil
}

// parsePolicy parses one line of a policy file, in the format with or without apiVersion and kind. Unknown fields are
// an error. The user or group "*" becomes the group system:authenticated.
func parsePolicy(line []byte) (abacPolicy, error) {
	var of metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(line, &of); err != nil {
		return abacPolicy{}, err
	}
	var p abacPolicy
	var strict []error
	var err error
	if of.APIVersion == "" && of.Kind == "" {
		var former legacyPolicy
		strict, err = json.UnmarshalStrict(line, &former)
		p = former.convert()
	} else {
		strict, err = json.UnmarshalStrict(line, &p)
		if err == nil && (p.APIVersion != abacVersion || p.Kind != "Policy") {
			err = fmt.Errorf("it is not a Policy of %s", abacVersion)
		}
	}
	if err = errors.Join(append(strict, err)...); err != nil {
		return abacPolicy{}, err
	}
	// "*" does not include unauthenticated users.
	if p.Spec.User == "*" || p.Spec.Group == "*" {
		p.Spec.User, p.Spec.Group = "", user.AllAuthenticated
	}
	return p, nil
}

// Authorize implements authorizer.UnconditionalAuthorizer. It allows a request if a policy matches its user and its
// resource or path, and is not limited to reading or the request only reads. It has no opinion about other requests.
func (p abac) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	for i := range p {
		if p[i].subject(a.GetUser()) && (!p[i].Spec.Readonly || a.IsReadOnly()) && p[i].object(a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "No policy matched.", nil
}

// subject reports whether the policy applies to the user u. It returns false for a nil user and for a policy without
// user and group.
func (p *abacPolicy) subject(u user.Info) bool {
	if u == nil || p.Spec.User == "" && p.Spec.Group == "" {
		return false
	}
	if s := p.Spec.User; s != "" && s != u.GetName() {
		return false
	}
	g := p.Spec.Group
	return g == "" || slices.Contains(u.GetGroups(), g)
}

// object reports whether the policy applies to the resource or path of the request. A path in a policy may end with
// "*".
func (p *abacPolicy) object(a authorizer.Attributes) bool {
	is := func(want, s string) bool { return want == "*" || want == s }
	if a.IsResourceRequest() {
		return is(p.Spec.Namespace, a.GetNamespace()) && is(p.Spec.Resource, a.GetResource()) && is(p.Spec.APIGroup, a.GetAPIGroup())
	}
	path := p.Spec.NonResourcePath
	if is(path, a.GetPath()) {
		return true
	}
	prefix, any := strings.CutSuffix(path, "*")
	return any && strings.HasPrefix(a.GetPath(), strings.TrimRight(prefix, "*"))
}

// RulesFor implements authorizer.RuleResolver. It lists the permissions that the policies grant u in a namespace. The
// list is always complete.
func (p abac) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var res []authorizer.ResourceRuleInfo
	var urls []authorizer.NonResourceRuleInfo
	for i := range p {
		s := &p[i].Spec
		if !p[i].subject(u) {
			continue
		}
		verbs := []string{"*"}
		if s.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if s.Resource != "" && (s.Namespace == "*" || s.Namespace == namespace) {
			res = append(res, &authorizer.DefaultResourceRuleInfo{Verbs: verbs, APIGroups: []string{s.APIGroup}, Resources: []string{s.Resource}})
		}
		if s.NonResourcePath != "" {
			urls = append(urls, &authorizer.DefaultNonResourceRuleInfo{Verbs: verbs, NonResourceURLs: []string{s.NonResourcePath}})
		}
	}
	return res, urls, false, nil
}
