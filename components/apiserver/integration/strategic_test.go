package integration

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/apiserver"
)

// TestMalformedStrategicPatch: a strategic merge patch that is malformed is the client's error.
func TestMalformedStrategicPatch(t *testing.T) {
	a := newAPI(t, startServer(t, apiserver.Config{}))
	const (
		pod        = "/api/v1/namespaces/default/pods"
		service    = "/api/v1/namespaces/default/services"
		deployment = "/apis/apps/v1/namespaces/default/deployments"
	)
	for collection, body := range map[string]string{
		pod: `{"metadata":{"name":"x","finalizers":["example.com/f"]},"spec":{
			"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"env":[{"name":"e","value":"v"}]}],
			"volumes":[{"name":"v","emptyDir":{}}],"tolerations":[{"operator":"Exists"}]}}`,
		service: `{"metadata":{"name":"x"},"spec":{"ports":[{"port":80}]}}`,
		deployment: `{"metadata":{"name":"x"},"spec":{"strategy":{"type":"RollingUpdate"},"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`,
	} {
		if r := a.do("POST", collection, body, jsn); r.code != 201 {
			t.Fatalf("%d %s", r.code, r.body)
		}
	}
	for _, c := range []struct{ collection, patch string }{
		{service, `{"spec":{"ports":[null]}}`},
		{service, `{"spec":{"ports":[1]}}`},
		{service, `{"spec":{"ports":[[]]}}`},
		{service, `{"spec":{"ports":[{"port":81},null]}}`},
		{service, `{"spec":{"ports":[{"port":81},"x"]}}`},
		{service, `{"spec":{"ports":[{}]}}`},
		{service, `{"spec":{"ports":[{"name":"x"}]}}`},
		{service, `{"spec":{"ports":[{"port":null}]}}`},
		{service, `{"spec":{"ports":[{"port":{}}]}}`},
		{service, `{"spec":{"ports":[{"port":[]}]}}`},
		{service, `{"spec":{"ports":[{"port":"80"}]}}`},
		{service, `{"spec":{"ports":{}}}`},
		{service, `{"spec":{"ports":"x"}}`},
		{service, `{"spec":[]}`},
		{service, `{"spec":1}`},
		{service, `{"spec":{"$patch":1}}`},
		{service, `{"spec":{"$patch":"unknown"}}`},
		{service, `{"$patch":{}}`},
		{service, `{"$patch":"delete","spec":1}`},
		{service, `{"spec":{"ports":[{"$patch":"unknown","port":80}]}}`},
		{service, `{"spec":{"ports":[{"$patch":1,"port":80}]}}`},
		{service, `{"spec":{"ports":[{"$patch":"delete"}]}}`},
		{service, `{"spec":{"ports":[{"$patch":"merge","port":80}]}}`},
		{service, `{"spec":{"$setElementOrder/ports":1}}`},
		{service, `{"spec":{"$setElementOrder/ports":[1]}}`},
		{service, `{"spec":{"$setElementOrder/ports":[null]}}`},
		{service, `{"spec":{"$setElementOrder/ports":[{}]}}`},
		{service, `{"spec":{"$setElementOrder/ports":[{"port":81}],"ports":[{"port":82}]}}`},
		{service, `{"spec":{"$setElementOrder/ports":[{"port":80}],"ports":1}}`},
		{service, `{"spec":{"$setElementOrder/ports":[{"port":80}],"ports":[null]}}`},
		{service, `{"spec":{"$setElementOrder/unknown":[{"port":80}]}}`},
		{service, `{"spec":{"$setElementOrder/type":["x"]}}`},
		{service, `{"spec":{"$setElementOrder/":["x"]}}`},
		{service, `{"spec":{"$retainKeys":1}}`},
		{service, `{"spec":{"$retainKeys":[1]}}`},
		{service, `{"spec":{"$retainKeys":["type"],"ports":[{"port":81}]}}`},
		{pod, `{"metadata":{"finalizers":[{}]}}`},
		{pod, `{"metadata":{"finalizers":[null]}}`},
		{pod, `{"metadata":{"finalizers":[[]]}}`},
		{pod, `{"metadata":{"finalizers":[[],"x"]}}`},
		{pod, `{"metadata":{"finalizers":["x",1]}}`},
		{pod, `{"metadata":{"ownerReferences":[null]}}`},
		{pod, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[{}]}}`},
		{pod, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[[]]}}`},
		{pod, `{"metadata":{"$setElementOrder/finalizers":[{}]}}`},
		{pod, `{"metadata":{"$setElementOrder/finalizers":[[],"x"]}}`},
		{pod, `{"metadata":{"$setElementOrder/finalizers":"x"}}`},
		{pod, `{"metadata":{"labels":{"$retainKeys":1}}}`},
		{pod, `{"metadata":{"labels":[]}}`},
		{pod, `{"spec":{"containers":[null]}}`},
		{pod, `{"spec":{"containers":[{"name":1}]}}`},
		{pod, `{"spec":{"containers":[{"name":null}]}}`},
		{pod, `{"spec":{"containers":[{"name":{}}]}}`},
		{pod, `{"spec":{"containers":[{"name":["c"]}]}}`},
		{pod, `{"spec":{"containers":[{"image":"x"}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","ports":[null]}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","ports":[{"hostPort":1}]}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","env":[null]}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","env":{}}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","$setElementOrder/env":[{"name":"x"}],"env":[{"value":"v"}]}]}}`},
		{pod, `{"spec":{"containers":[{"name":"c","command":[null,{}]}]}}`},
		{pod, `{"spec":{"volumes":[{"name":"v","$retainKeys":1}]}}`},
		{pod, `{"spec":{"volumes":[{"name":"v","$retainKeys":["name"],"hostPath":{"path":"/"}}]}}`},
		{pod, `{"spec":{"volumes":[{"name":"v","$retainKeys":[{}]}]}}`},
		{pod, `{"spec":{"volumes":[{"name":"v","$patch":[]}]}}`},
		{pod, `{"spec":{"tolerations":[null,1]}}`},
		{deployment, `{"spec":{"strategy":{"$retainKeys":1}}}`},
		{deployment, `{"spec":{"strategy":{"$retainKeys":["type"],"rollingUpdate":{}}}}`},
		{deployment, `{"spec":{"strategy":{"$retainKeys":[{}],"type":"Recreate"}}}`},
		{deployment, `{"spec":{"strategy":{"$retainKeys":[[]]}}}`},
		{deployment, `{"spec":{"strategy":[]}}`},
		{deployment, `{"spec":{"template":{"spec":{"containers":[null]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"containers":"x"}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"image":"x"}]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"$setElementOrder/containers":["a"],"containers":[{"name":"c"}]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"initContainers":[null]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"initContainers":[1,{}]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"initContainers":[{}]}}}}`},
		{deployment, `{"spec":{"template":{"spec":{"initContainers":[{"name":{}},{"name":{}}]}}}}`},
	} {
		r := a.do("PATCH", c.collection+"/x?dryRun=All", c.patch, smp)
		var status metav1.Status
		if err := json.Unmarshal([]byte(r.body), &status); err != nil || r.code != 400 && r.code != 422 || status.Message == "" {
			t.Errorf("%s: %d %s", c.patch, r.code, r.body)
		}
	}
}
