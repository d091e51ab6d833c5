package upconfig

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"hyperkube/components/apiserver/compose"
	"hyperkube/components/controllers"
	"hyperkube/components/etcd"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/components/proxy"
	"hyperkube/components/scheduler"
	"hyperkube/internal/base/strictyaml"
	"hyperkube/internal/host/layout"
)

// testFlags are like the flags of `up`, with one of each type.
type testFlags struct {
	name, kubeletConfig, kubeletDir, domain string
	podCIDRs, serviceCIDRs, with            []string
	nodes                                   int
	verbose                                 bool
	grace                                   time.Duration
	bind                                    netip.Addr
}

func (f *testFlags) set() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.String("root", "", "")
	set.String("config", "", "")
	set.Bool("service", false, "")
	set.StringVar(&f.name, "node-name", "", "Name of the node.")
	set.StringVar(&f.kubeletConfig, "kubelet-config", "", "")
	set.StringVar(&f.kubeletDir, "kubelet-config-dir", "", "")
	set.StringVar(&f.domain, "cluster-domain", "", "")
	set.StringSliceVar(&f.podCIDRs, "cluster-cidr", nil, "")
	set.StringSliceVar(&f.serviceCIDRs, "service-cidr", nil, "")
	set.StringSliceVar(&f.with, "with", nil, "")
	set.IntVar(&f.nodes, "nodes", 0, "")
	set.BoolVar(&f.verbose, "verbose", false, "")
	set.DurationVar(&f.grace, "node-monitor-grace-period", 0, "")
	set.TextVar(&f.bind, "bind-address", netip.AddrFrom4([4]byte{127, 0, 0, 1}), "")
	return set
}

func newTestFlags() *pflag.FlagSet { return new(testFlags).set() }

// upHead and the other constants are the first lines of documents.
const (
	upHead        = "apiVersion: hyperkube.io/v1alpha1\nkind: UpConfiguration\n"
	clusterHead   = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"
	kubeletHead   = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	proxyHead     = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	tracingHead   = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	schedulerHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
)

// load loads files, by their names below /etc/hyperkube, as the default files. The paths in the error are those names.
func load(t *testing.T, files map[string]string) (*Config, string) {
	t.Helper()
	root := t.TempDir()
	l := layout.Under(root)
	dir := filepath.Dir(DefaultFile(l))
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(l, "", newTestFlags)
	if err != nil {
		return nil, strings.ReplaceAll(err.Error(), dir+"/", "")
	}
	return c, ""
}

// loadOne loads one file.
func loadOne(t *testing.T, text string) (*Config, string) {
	t.Helper()
	return load(t, map[string]string{"config.yaml": text})
}

func TestSettings(t *testing.T) {
	c, problem := load(t, map[string]string{
		"config.yaml": upHead + "nodeName: a\nclusterCIDR: [10.1.0.0/16]\nserviceCIDR: 10.2.0.0/16,fd00::/112\nnodes: 2\nverbose: true\n" +
			"nodeMonitorGracePeriod: 1m\nbindAddress: 0.0.0.0\nwith: [metrics]\n",
		"config.yaml.d/2.yaml":  upHead + "nodeName: b\nverbose: null\n",
		"config.yaml.d/1.yaml":  upHead + "nodeName: c\nnodes: 3\n",
		"config.yaml.d/ignored": "not: read",
	})
	if problem != "" {
		t.Fatal(problem)
	}
	var f testFlags
	set := f.set()
	if err := set.Parse([]string{"--nodes=4", "--bind-address=::"}); err != nil {
		t.Fatal(err)
	}
	if err := c.ApplyTo(set); err != nil {
		t.Fatal(err)
	}
	if f.name != "b" || strings.Join(f.podCIDRs, ",") != "10.1.0.0/16" || strings.Join(f.serviceCIDRs, ",") != "10.2.0.0/16,fd00::/112" || f.nodes != 4 ||
		f.verbose || f.grace != time.Minute || f.bind != netip.IPv6Unspecified() || strings.Join(f.with, ",") != "metrics" {
		t.Errorf("got %+v", f)
	}
	if set.Changed("node-name") || len(KeptArgs(set)) != 1 || KeptArgs(set)[0] != "--bind-address=::" {
		t.Errorf("values of files count as flags of the command line: %v", KeptArgs(set))
	}
	if len(c.Files) != 3 || filepath.Base(c.Files[2]) != "2.yaml" {
		t.Errorf("files: %q", c.Files)
	}
	text, err := c.Text(set, true)
	if want := upHead + "bindAddress: '::'\nnodeMonitorGracePeriod: 1m0s\n"; err != nil || text != want {
		t.Errorf("text for replacing:\n%s%v", text, err)
	}
	if text, err = c.Text(set, false); err != nil || !strings.Contains(text, "\nnodeName: b\nnodes: 4\n") {
		t.Errorf("text:\n%s%v", text, err)
	}
}

// TestNoFiles checks that a missing default file is no error, and that its configuration has an empty text.
func TestNoFiles(t *testing.T) {
	l := layout.Under(t.TempDir())
	c, err := Load(l, "", func() *pflag.FlagSet { t.Error("flags are created without files"); return nil })
	if err != nil || len(c.Files) > 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	if text, err := c.Text(newTestFlags(), true); text != "" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Load(l, filepath.Join(t.TempDir(), "missing.yaml"), newTestFlags); err == nil {
		t.Error("a missing file of --config is accepted")
	}
}

func TestNetworking(t *testing.T) {
	c, problem := loadOne(t, clusterHead+"networking: {podSubnet: 10.1.0.0/16, serviceSubnet: 10.2.0.0/16, dnsDomain: x.y}\nkubernetesVersion: v1.37.0\napiServer:\n  certSANs: [a.example, '*.b.example', 192.0.2.1]\n")
	if problem != "" {
		t.Fatal(problem)
	}
	var f testFlags
	if err := c.ApplyTo(f.set()); err != nil || f.domain != "x.y" || f.podCIDRs[0] != "10.1.0.0/16" || f.serviceCIDRs[0] != "10.2.0.0/16" || len(c.CertSANs) != 3 {
		t.Errorf("%+v, %+v, %v", f, c.CertSANs, err)
	}
}

func TestErrors(t *testing.T) {
	apiArgs := func(args string) string { return clusterHead + "apiServer:\n  extraArgs:\n" + args }
	for name, c := range map[string]struct {
		text string
		want []string // contained in the error
	}{
		"unknown key":             {upHead + "nodeNam: a", []string{"config.yaml:3: UpConfiguration: nodeNam: unknown key"}},
		"case of key":             {upHead + "clusterCidr: a", []string{"config.yaml:3: UpConfiguration: clusterCidr: unknown key: did you mean clusterCIDR?"}},
		"flag as key":             {upHead + "node-name: a", []string{"node-name: unknown key: did you mean nodeName?"}},
		"root":                    {upHead + "root: /r", []string{"config.yaml:3: UpConfiguration: root: not supported in a file: the path of the file depends on it"}},
		"config":                  {upHead + "config: /r", []string{"the file cannot name another file"}},
		"service":                 {upHead + "service: true", []string{"service: not supported in a file"}},
		"key of k3s":              {upHead + "\ntls-san: [a]", []string{"config.yaml:4: UpConfiguration: tls-san: unknown key: it is a setting of k3s; use apiServer.certSANs of ClusterConfiguration"}},
		"bool":                    {upHead + "verbose: 'true'", []string{"config.yaml:3: UpConfiguration: verbose: expected true or false"}},
		"int":                     {upHead + "nodes: two", []string{"nodes: expected an integer"}},
		"fraction":                {upHead + "nodes: 1.5", []string{"nodes: expected an integer"}},
		"string":                  {upHead + "nodeName: 5", []string{"nodeName: expected a string: quote the value"}},
		"mapping":                 {upHead + "nodeName: {a: b}", []string{"nodeName: expected a string"}},
		"list":                    {upHead + "with: {a: b}", []string{"with: expected a list of strings"}},
		"list of numbers":         {upHead + "with: [1]", []string{"with: expected a list of strings"}},
		"duration":                {upHead + "nodeMonitorGracePeriod: 5x", []string{"config.yaml:3: UpConfiguration: nodeMonitorGracePeriod: time: unknown unit"}},
		"address":                 {upHead + "bindAddress: here", []string{"bindAddress: ParseAddr(\"here\")"}},
		"duplicate key":           {upHead + "nodes: 1\nnodes: 2", []string{`config.yaml:4: key "nodes" is already set in line 3`}},
		"second document":         {upHead + "---\n" + upHead, []string{"config.yaml:4: UpConfiguration: the file already has a document of this kind in line 1"}},
		"no kind":                 {"a: b", []string{"config.yaml:1: the document has no kind: a document of settings of `up` begins with"}},
		"version":                 {"apiVersion: hyperkube.io/v1\nkind: UpConfiguration", []string{`apiVersion "hyperkube.io/v1" is not supported: expected hyperkube.io/v1alpha1`}},
		"version of kubeadm":      {"apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration", []string{"expected kubeadm.k8s.io/v1beta4; `hyperkube config migrate` converts"}},
		"kind of init":            {"apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration", []string{"kind InitConfiguration is not supported: it configures `hyperkube init`"}},
		"other kind":              {"apiVersion: v1\nkind: Pod", []string{"kind Pod is not supported: expected one of"}},
		"several":                 {upHead + "a: 1\nb: 2\n---\n" + kubeletHead + "c: 3", []string{"config.yaml:3: ", "config.yaml:4: ", "config.yaml:8: KubeletConfiguration: c: unknown field"}},
		"cluster: unknown field":  {clusterHead + "apiServer: {certSAN: []}", []string{"config.yaml:3: ClusterConfiguration: apiServer.certSAN: unknown field"}},
		"cluster: kubeadm's":      {clusterHead + "etcd:\n  external: {}", []string{"config.yaml:4: ClusterConfiguration: etcd.external: not supported: each control plane"}},
		"cluster: endpoint":       {clusterHead + "controlPlaneEndpoint: a:1", []string{"config.yaml:3: ClusterConfiguration: controlPlaneEndpoint: not supported"}},
		"cluster: version":        {clusterHead + "kubernetesVersion: v1.30.0", []string{"config.yaml:3: ClusterConfiguration: kubernetesVersion: v1.30.0"}},
		"cluster: SAN":            {clusterHead + "apiServer:\n  certSANs: [a, a_b]", []string{`config.yaml:4: ClusterConfiguration: apiServer.certSANs: "a_b" is neither`}},
		"cluster: environment":    {clusterHead + "scheduler:\n  extraEnvs: [{name: a, value: b}]", []string{"config.yaml:4: ClusterConfiguration: scheduler.extraEnvs: not supported"}},
		"cluster: volume":         {clusterHead + "apiServer:\n  extraVolumes:\n  - {name: a, hostPath: /a, mountPath: /b}", []string{"config.yaml:5: ClusterConfiguration: apiServer.extraVolumes: a: the components of `up` read files at their paths on the host: use /a instead of /b"}},
		"cluster: two CIDRs":      {upHead + "clusterCIDR: [10.1.0.0/16]\n---\n" + clusterHead + "networking: {podSubnet: 10.1.0.0/16}", []string{"config.yaml:7: ClusterConfiguration: networking.podSubnet is also set as clusterCIDR of UpConfiguration in ", "config.yaml:3"}},
		"argument: unknown":       {apiArgs("  - {name: audit-log-pat, value: /x}"), []string{`config.yaml:5: "audit-log-pat" is not a flag of kube-apiserver`}},
		"argument: dashes":        {apiArgs("  - {name: --audit-log-path, value: /x}"), []string{"write the name without dashes"}},
		"argument: value":         {apiArgs("  - {name: event-ttl, value: /x}"), []string{`config.yaml:5: kube-apiserver: invalid argument "/x" for "--event-ttl" flag`}},
		"argument: type":          {apiArgs("  - {name: event-ttl, value: 1}"), []string{"config.yaml:5: ClusterConfiguration: apiServer.extraArgs[0].value: expected a string, got a number: quote the value"}},
		"argument: gate":          {apiArgs("  - {name: feature-gates, value: NoSuchGate=true}"), []string{"config.yaml:5: ", "unrecognized feature gate: NoSuchGate"}},
		"argument: plugin":        {apiArgs("  - {name: enable-admission-plugins, value: Magic}"), []string{`config.yaml:5: apiServer.extraArgs: enable-admission-plugins plugin "Magic" is unknown`}},
		"argument: API":           {apiArgs("  - {name: runtime-config, value: v1=false}"), []string{"--runtime-config: v1=false is not supported"}},
		"argument: policy":        {apiArgs("  - {name: audit-policy-file, value: /missing}"), []string{"/missing"}},
		"argument: port":          {apiArgs("  - {name: event-ttl, value: 1h}\n  - {name: secure-port, value: '10250'}"), []string{"config.yaml:6: apiServer.extraArgs: --secure-port: 10250 is a port of the kubelet"}},
		"argument: position":      {apiArgs("  - {name: event-ttl, value: 1h}\n  - {name: audit-policy-file, value: /missing}\n  - {name: enable-admission-plugins, value: Magic}"), []string{"config.yaml:6: apiServer.extraArgs: ", "config.yaml:7: apiServer.extraArgs: "}},
		"argument: path":          {apiArgs("  - {name: audit-policy-file, value: policy.yaml}"), []string{`config.yaml:5: kube-apiserver: audit-policy-file: "policy.yaml" is not an absolute path`}},
		"argument: OIDC":          {apiArgs("  - {name: oidc-issuer-url, value: 'http://a'}"), []string{"oidc"}},
		"argument: loopback":      {apiArgs("  - {name: bind-address, value: 127.0.0.1}"), []string{"--bind-address: 127.0.0.1: pods must reach the API server"}},
		"owned: etcd":             {clusterHead + "etcd: {local: {extraArgs: [{name: data-dir, value: /x}]}}", []string{`config.yaml:3: data-dir cannot be set to "/x" for etcd: etcd stores its data below`}},
		"owned: peer":             {clusterHead + "etcd: {local: {extraArgs: [{name: peer-cert-file, value: /x}]}}", []string{"`up` issues and renews the certificates of etcd"}},
		"owned: API server":       {apiArgs("  - {name: etcd-servers, value: 'http://a'}"), []string{"config.yaml:5: etcd-servers cannot be set to \"http://a\" for kube-apiserver: the API server uses etcd in its process"}},
		"owned: controllers":      {clusterHead + "controllerManager: {extraArgs: [{name: leader-elect-lease-duration, value: 1s}]}", []string{"so it elects no leader"}},
		"owned: scheduler":        {clusterHead + "scheduler: {extraArgs: [{name: config, value: /x}]}", []string{"add the KubeSchedulerConfiguration as a document"}},
		"owned: kubelet":          {upHead + "kubeletExtraArgs: [{name: root-dir, value: /x}]", []string{"config.yaml:3: root-dir cannot be set"}},
		"owned: proxy":            {upHead + "kubeProxyExtraArgs: [{name: cluster-cidr, value: /x}]", []string{"set clusterCIDR or serviceCIDR"}},
		"controllers: no name":    {clusterHead + "controllerManager: {extraArgs: [{name: controllers, value: nosuch}]}", []string{"config.yaml:3: controllerManager.extraArgs: ", "nosuch"}},
		"kubelet: type":           {kubeletHead + "maxPods: many", []string{"config.yaml:3: KubeletConfiguration: maxPods: expected an integer of 32 bits, got a string"}},
		"kubelet: value":          {kubeletHead + "evictionHard: {nosuch.available: 5%}", []string{"config.yaml:1: KubeletConfiguration: ", "nosuch"}},
		"kubelet: argument":       {upHead + "kubeletExtraArgs: [{name: max-pods, value: x}]", []string{"config.yaml:3: kubelet: invalid argument"}},
		"kubelet: argument field": {upHead + "kubeletExtraArgs: [{nam: max-pods}]", []string{"config.yaml:3: UpConfiguration: kubeletExtraArgs[0].nam: unknown field"}},
		"proxy: mode":             {proxyHead + "mode: ipvs", []string{`config.yaml:1: KubeProxyConfiguration: mode: unsupported value "ipvs"`}},
		"proxy: client":           {proxyHead + "clientConnection: {kubeconfig: /x}", []string{"clientConnection.kubeconfig"}},
		"scheduler: plugin":       {schedulerHead + "profiles:\n- plugins: {score: {enabled: [{name: Magic}]}}", []string{"config.yaml:1: KubeSchedulerConfiguration: ", "Magic"}},
		"tracing: rate":           {tracingHead + "samplingRatePerMillion: 2000000", []string{"config.yaml:1: TracingConfiguration: ", "less than or equal to one million"}},
		"tracing: field":          {tracingHead + "sampling: 1", []string{"config.yaml:3: TracingConfiguration: sampling: unknown field"}},
		"tracing: version":        {"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n", []string{"expected apiserver.config.k8s.io/v1"}},
		"scheduler: field":        {schedulerHead + "profiles:\n- pluginz: {}", []string{"config.yaml:4: KubeSchedulerConfiguration: profiles[0].pluginz: unknown field"}},
	} {
		_, got := loadOne(t, c.text)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	}
}

// TestTracing checks that one document configures the traces of all components, except those of a kubelet that has its own.
func TestTracing(t *testing.T) {
	document := tracingHead + "endpoint: collector:4317\n"
	for text, kubelet := range map[string]string{
		document: "collector:4317",
		document + "---\n" + kubeletHead + "tracing: {endpoint: 'other:4317'}\n": "other:4317",
		document + "---\n" + kubeletHead + "maxPods: 5\n":                        "collector:4317",
	} {
		c, failed := loadOne(t, text)
		if failed != "" {
			t.Fatal(failed)
		}
		if got := c.Components.Tracing; got == nil || *got.Endpoint != "collector:4317" {
			t.Errorf("%s: got %+v", text, got)
		}
		file, err := c.KubeletConfiguration("", "")
		if err != nil || file == nil || file.Tracing == nil || *file.Tracing.Endpoint != kubelet {
			t.Errorf("%s: the kubelet has %+v, %v", text, file, err)
		}
	}
}

// TestOwnedFlags checks that the reasons why flags cannot be set are those of flags that exist.
func TestOwnedFlags(t *testing.T) {
	for component, set := range componentFlags(t) {
		for _, o := range ownedFlags[component] {
			for _, name := range o.flags {
				found := component == "etcd" && name == "config-file" // only a flag of the command
				set.VisitAll(func(f *pflag.Flag) {
					prefix, isPrefix := strings.CutSuffix(name, "*")
					found = found || f.Name == name || isPrefix && strings.HasPrefix(f.Name, prefix)
				})
				if !found {
					t.Errorf("%s has no flag %s", component, name)
				}
			}
		}
	}
}

// TestAllFlags checks that every flag of every component either can be set in a file, or is refused with a reason.
func TestAllFlags(t *testing.T) {
	for component, set := range componentFlags(t) {
		set.VisitAll(func(f *pflag.Flag) {
			if isPath(f.Name) || f.Hidden { // the default value of a path may be relative; hidden flags have no effect
				return
			}
			document := clusterHead + map[string]string{
				"etcd": "etcd: {local: {extraArgs: ARGS}}", "kube-apiserver": "apiServer: {extraArgs: ARGS}",
				"kube-controller-manager": "controllerManager: {extraArgs: ARGS}", "kube-scheduler": "scheduler: {extraArgs: ARGS}",
			}[component]
			switch component {
			case "kubelet":
				document = upHead + "kubeletExtraArgs: ARGS"
			case "kube-proxy":
				document = upHead + "kubeProxyExtraArgs: ARGS"
			}
			value := f.Value.String()
			if list, ok := f.Value.(pflag.SliceValue); ok {
				value = strings.Join(list.GetSlice(), ",")
			}
			args := "[{name: " + f.Name + ", value: '" + strings.ReplaceAll(value, "'", "") + "'}]"
			_, problem := loadOne(t, strings.Replace(document, "ARGS", args, 1))
			reason := ownedReason(component, f.Name)
			if reason != "" && !strings.Contains(problem, reason) || reason == "" && strings.Contains(problem, "is not a flag of") {
				t.Errorf("%s --%s: %q", component, f.Name, problem)
			}
		})
	}
}

// componentFlags returns the flags of each component.
func componentFlags(t *testing.T) map[string]*pflag.FlagSet {
	t.Helper()
	sets := map[string]*pflag.FlagSet{}
	for _, component := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		sets[component] = newSet()
	}
	etcd.NewFlags(sets["etcd"])
	compose.NewFlags(sets["kube-apiserver"])
	controllers.NewFlags(sets["kube-controller-manager"])
	kubeletconfig.NewOverrides(sets["kubelet"])
	if _, err := scheduler.NewFlags(sets["kube-scheduler"], nil); err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.NewFlags(sets["kube-proxy"], nil); err != nil {
		t.Fatal(err)
	}
	return sets
}

// TestK3s checks that each key of a file of k3s gets the name of its counterpart.
func TestK3s(t *testing.T) {
	_, got := loadOne(t, "# k3s\nwrite-kubeconfig-mode: \"0644\"\ntls-san: [a]\ndisable: [traefik]\nnode-label: [a=b]\nnode-taint: [a=b:NoSchedule]\n"+
		"cluster-cidr: 10.1.0.0/16\nservice-cidr: 10.2.0.0/16\ncluster-domain: x\nflannel-backend: host-gw\nkube-apiserver-arg+: [v=2]\nkubelet-arg: [max-pods=5]\n")
	for _, want := range []string{
		"config.yaml:2: the document has no kind and looks like a configuration file of k3s", "config.yaml:2: write-kubeconfig-mode: `up` writes the kubeconfig",
		"config.yaml:3: tls-san: use apiServer.certSANs", "config.yaml:4: disable: ", "config.yaml:5: node-label: use node-labels in kubeletExtraArgs",
		"config.yaml:6: node-taint: use registerWithTaints of KubeletConfiguration", "config.yaml:7: cluster-cidr: use clusterCIDR of UpConfiguration",
		"config.yaml:8: service-cidr: use serviceCIDR", "config.yaml:9: cluster-domain: use clusterDomain", "config.yaml:10: flannel-backend: use podNetwork",
		"config.yaml:11: kube-apiserver-arg+: use apiServer.extraArgs", "config.yaml:12: kubelet-arg: use a KubeletConfiguration",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// TestDefaultsAreValid checks that the printed defaults are a valid file that does not change anything.
func TestDefaultsAreValid(t *testing.T) {
	var out bytes.Buffer
	if err := WriteDefaults(&out, newTestFlags()); err != nil {
		t.Fatal(err)
	}
	c, problem := loadOne(t, out.String())
	if problem != "" {
		t.Fatalf("%s\n%s", problem, out.String())
	}
	set := newTestFlags()
	if err := c.ApplyTo(set); err != nil {
		t.Fatal(err)
	}
	set.VisitAll(func(f *pflag.Flag) {
		if f.Value.String() != f.DefValue {
			t.Errorf("%s is %s, not %s", f.Name, f.Value, f.DefValue)
		}
	})
	if !strings.Contains(out.String(), "# Name of the node.\nnodeName: \"\"\n") {
		t.Errorf("nodeName is not in\n%s", out.String())
	}
}

func TestChangedKinds(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want string }{
		"none":     {upHead + "verbose: true\n", upHead + "verbose: true\n", ""},
		"one":      {upHead + "---\n" + kubeletHead + "maxPods: 1\n", upHead + "---\n" + kubeletHead + "maxPods: 2\n", "KubeletConfiguration"},
		"first":    {"", schedulerHead + "---\n" + clusterHead, "ClusterConfiguration KubeSchedulerConfiguration"},
		"removed":  {proxyHead, "", "KubeProxyConfiguration"},
		"replaced": {upHead, clusterHead, "UpConfiguration ClusterConfiguration"},
	} {
		got, err := ChangedKinds(c.before, c.after)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestRunning(t *testing.T) {
	l := layout.Under(t.TempDir())
	if err := os.MkdirAll(l.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := LoadRunning(l); err != nil || r.Text != "" || r.Args != nil {
		t.Errorf("%+v, %v", r, err)
	}
	set := newTestFlags()
	if err := set.Parse([]string{"--with=a,b", "--kubelet-config=/k", "--root=/r", "--nodes=3", "--config=/c"}); err != nil {
		t.Fatal(err)
	}
	if err := (Running{Args: KeptArgs(set), Text: "x"}).Save(l); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(runningFile(l)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	r, err := LoadRunning(l)
	if err != nil || r.Text != "x" || strings.Join(r.Args, " ") != "--config=/c --kubelet-config=/k" {
		t.Errorf("%+v, %v", r, err)
	}
	var f testFlags
	set = f.set()
	if err := set.Parse([]string{"--config=/d"}); err != nil {
		t.Fatal(err)
	}
	if kept := Keep(set, append(r.Args, "--unknown=1")); strings.Join(kept, " ") != "--kubelet-config=/k" || f.kubeletConfig != "/k" {
		t.Errorf("kept %q, %+v", kept, f)
	}
	if err := (Running{}).Save(l); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(runningFile(l)); !os.IsNotExist(err) {
		t.Errorf("the file remains: %v", err)
	}
}

// FuzzLoad checks that no file crashes the program, and that errors name the file.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		upHead + "nodes: 1\nwith: [a]\nkubeletExtraArgs: [{name: max-pods, value: '5'}]", clusterHead + "apiServer: {extraArgs: [{name: event-ttl, value: 1h}], certSANs: [a]}\n---\n" + kubeletHead + "maxPods: 5",
		"tls-san: a", schedulerHead + "profiles: [{schedulerName: a}]", proxyHead + "conntrack: {min: 1}", upHead + "kubeletExtraArgs: {a: b}", clusterHead + "etcd: {local: null}\napiServer: 5",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reader{flags: newTestFlags(), merged: map[string]*strictyaml.Node{}}
		r.readFile("f.yaml", data)
		var c Config
		if len(r.errs) == 0 {
			_ = r.build(&c)
		}
		for _, err := range r.errs {
			if !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Fatalf("error without position: %v", err)
			}
		}
		if len(r.errs) == 0 {
			if _, err := c.Text(newTestFlags(), false); err != nil {
				t.Fatal(err)
			}
		}
	})
}
