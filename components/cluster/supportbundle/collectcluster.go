package supportbundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"hyperkube/components/cluster/clusterconfig"
	"hyperkube/components/cluster/node"
	"hyperkube/components/runtime/runtimeclient"
	"hyperkube/internal/host/layout"
)

// maxObjects is the number of objects of each kind that is collected.
const maxObjects = 1000

// cluster contains the clients of the API server. err is set if there are none.
type cluster struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	err     error
}

// newCluster returns the clients with the credentials of this machine. It does not connect.
func newCluster(l layout.Node) *cluster {
	rest, err := clientcmd.BuildConfigFromFlags("", clusterconfig.AdminKubeconfig(l))
	if err != nil {
		return &cluster{err: fmt.Errorf("the API server is not queried: %w", err)}
	}
	rest.QPS, rest.Burst = 100, 200
	rest.WarningHandler = restclient.NoWarnings{} // of deprecated APIs, which are listed too
	c := &cluster{}
	var kubeErr, dynamicErr error
	c.kube, kubeErr = kubernetes.NewForConfig(rest)
	c.dynamic, dynamicErr = dynamic.NewForConfig(rest)
	c.err = errors.Join(kubeErr, dynamicErr)
	return c
}

// secretValues returns the values of all Secrets, which must not be in the archive; none if the API server does not
// answer. The certificate of a CA and the name of a namespace are public.
func (c *cluster) secretValues(ctx context.Context) [][]byte {
	if c.err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, collectorTimeout/3)
	defer cancel()
	secrets, err := c.kube.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var values [][]byte
	for i := range secrets.Items {
		for key, value := range secrets.Items[i].Data {
			if key != "ca.crt" && key != "namespace" {
				values = append(values, value)
			}
		}
	}
	return values
}

// collectObjects adds the objects of the cluster as YAML, except Secrets.
func collectObjects(ctx context.Context, c *collection) error {
	if c.cluster.err != nil {
		return c.cluster.err
	}
	// Some groups fail if their extension API server does not answer.
	lists, err := c.cluster.kube.Discovery().ServerPreferredResources()
	if len(lists) == 0 {
		return err
	}
	c.fail(err)
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if slices.Contains(r.Verbs, "list") && !strings.Contains(r.Name, "/") && r.Kind != "Secret" {
				c.fail(c.addObjects(ctx, version.WithResource(r.Name)))
			}
		}
	}
	return nil
}

// addObjects adds a file with the objects of a resource, at most maxObjects. It adds none if there are no objects.
func (c *collection) addObjects(ctx context.Context, resource schema.GroupVersionResource) error {
	list, err := c.cluster.dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: maxObjects})
	if err != nil {
		return fmt.Errorf("listing %s: %w", resource.Resource, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	var text bytes.Buffer
	for i := range list.Items {
		data, err := objectText(&list.Items[i])
		if err != nil {
			return err
		}
		text.WriteString("---\n")
		text.Write(data)
	}
	name := resource.Resource
	if resource.Group != "" {
		name += "." + resource.Group
	}
	c.add("objects/"+name+".yaml", text.Bytes())
	return nil
}

// objectText returns an object in YAML without credentials.
func objectText(object *unstructured.Unstructured) ([]byte, error) {
	return yaml.Marshal(redactObject("", object.Object))
}

// collectProfiles adds the goroutines and the heap profile of the process of the API server, which in a cluster of `up`
// contains all components, and of the kubelets.
func collectProfiles(ctx context.Context, c *collection) error {
	if c.cluster.err != nil {
		return c.cluster.err
	}
	get := func(prefix, name, profile, debug, file string) error {
		data, err := c.cluster.kube.Discovery().RESTClient().Get().AbsPath(prefix, "/debug/pprof", profile).Param("debug", debug).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("reading the profile %s of %s: %w", profile, name, err)
		}
		c.add("profiles/"+name+"/"+file, data)
		return nil
	}
	both := func(prefix, name string) error {
		return errors.Join(get(prefix, name, "goroutine", "2", "goroutines.txt"), get(prefix, name, "heap", "0", "heap.pprof"))
	}
	errs := []error{both("", "kube-apiserver")}
	nodes, err := c.cluster.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("listing nodes: %w", err))...)
	}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		errs = append(errs, both("/api/v1/nodes/"+url.PathEscape(name)+"/proxy", "kubelet-"+name))
	}
	return errors.Join(errs...)
}

// collectRuntime adds the pods, containers and images of the container runtime, which answers without an API server.
func collectRuntime(ctx context.Context, c *collection) error {
	if pid, err := node.RuntimePID(c.cfg.Layout); err != nil || pid == 0 {
		return errors.Join(err, errors.New("the container runtime does not run"))
	}
	runtime, err := runtimeclient.Dial(c.cfg.Layout.RuntimeSocket())
	if err != nil {
		return err
	}
	defer runtime.Close()
	var errs []error
	keep := func(name string, v any, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("listing %s of the container runtime: %w", name, err))
			return
		}
		c.addJSON("runtime/"+name+".json", v)
	}
	pods, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	keep("pods", pods.GetItems(), err)
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	keep("containers", containers.GetContainers(), err)
	images, err := runtime.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	keep("images", images.GetImages(), err)
	status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{})
	keep("status", status, err)
	return errors.Join(errs...)
}
