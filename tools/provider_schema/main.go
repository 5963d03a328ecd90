// Command provider_schema prints, as JSON, what the Terraform provider behind pulumi-gcp declares of the
// resource types that the stand-in knows: rehearsal/providers/gcp/schema.json is its output.
//
// It is compiled within the provider's own module, from a checkout of the commit that the table is to show:
//
//	mkdir -p cmd/provider_schema && cp .../tools/provider_schema/main.go cmd/provider_schema/
//	go run ./cmd/provider_schema COMMIT VERSION DAY google_compute_network ... > schema.json
//
// `python -m tools.provider_schema` prints that command with the types. No set-up and no test runs it.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"unsafe"

	"github.com/hashicorp/terraform-plugin-sdk/v2/helper/schema"
	"github.com/hashicorp/terraform-provider-google-beta/google-beta/registry"

	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/artifactregistry"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/billingbudgets"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/cloudfunctions2"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/cloudrunv2"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/cloudscheduler"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/compute"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/container"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/eventarc"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/filestore"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/iambeta"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/kms"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/logging"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/monitoring"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/pubsub"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/resourcemanager"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/secretmanager"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/serviceusage"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/storage"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/services/tpuv2"
)

// captured is a closure over one text: the value that EmptyOrDefaultStringSuppress takes for none.
type captured struct {
	function uintptr
	text     string
}

// A cluster's own pools are as the type of pools has them.
const pools = "node_pool"

var oneOf = regexp.MustCompile(`to be one of \[?(.*?)\]?, got`)
var quoted = regexp.MustCompile(`"([^"]*)"`)

// property describes an attribute: words, and what a word can't hold.
func property(s *schema.Schema) any {
	words := []string{kind(s)}
	for _, flag := range []struct {
		word string
		on   bool
	}{
		{"required", s.Required}, {"optional", s.Optional}, {"computed", s.Computed}, {"fixed", s.ForceNew},
		{"sensitive", s.Sensitive},
	} {
		if flag.on {
			words = append(words, flag.word)
		}
	}
	more := map[string]any{}
	if s.Default != nil {
		more["default"] = s.Default
	}
	if s.DiffSuppressFunc != nil {
		more["suppress"] = name(s.DiffSuppressFunc)
		if strings.HasPrefix(name(s.DiffSuppressFunc), "tpgresource.EmptyOrDefaultStringSuppress") {
			more["unset"] = (*(**captured)(unsafe.Pointer(&s.DiffSuppressFunc))).text
		}
	}
	if s.StateFunc != nil {
		more["stored"] = name(s.StateFunc)
	}
	if values := values(s); len(values) > 0 {
		more["values"] = values
	}
	conflicts := map[string]bool{}
	for _, path := range append(append([]string{}, s.ConflictsWith...), s.ExactlyOneOf...) {
		conflicts[strings.ReplaceAll(path, ".0", "")] = true
	}
	if len(conflicts) > 0 {
		more["conflicts"] = keys(conflicts)
	}
	if len(more) == 0 {
		return strings.Join(words, " ")
	}
	more["is"] = strings.Join(words, " ")
	return more
}

func kind(s *schema.Schema) string {
	_, block := s.Elem.(*schema.Resource)
	switch {
	case s.Type == schema.TypeList && block && s.MaxItems == 1:
		return "block"
	case s.Type == schema.TypeSet && block && s.MaxItems == 1:
		return "block"
	case s.Type == schema.TypeList && block:
		return "blocks"
	case s.Type == schema.TypeSet && block:
		return "blockset"
	case (s.Type == schema.TypeList || s.Type == schema.TypeSet) && s.MaxItems == 1:
		return "single"
	}
	return strings.ToLower(strings.TrimPrefix(s.Type.String(), "Type"))
}

func name(function any) string {
	whole := runtime.FuncForPC(reflect.ValueOf(function).Pointer()).Name()
	return whole[strings.LastIndex(whole, "/")+1:]
}

// values are those that the check of an impossible one names.
func values(s *schema.Schema) (found []string) {
	if s.Type != schema.TypeString || s.ValidateFunc == nil {
		return nil
	}
	defer func() { _ = recover() }()
	_, errors := s.ValidateFunc("no such value", "it")
	for _, err := range errors {
		if match := oneOf.FindStringSubmatch(err.Error()); match != nil {
			for _, value := range quoted.FindAllStringSubmatch(match[1], -1) {
				found = append(found, value[1])
			}
		}
	}
	return found
}

func keys(set map[string]bool) (sorted []string) {
	for key := range set {
		sorted = append(sorted, key)
	}
	sort.Strings(sorted)
	return sorted
}

func walk(schemas map[string]*schema.Schema, prefix string, into map[string]any) {
	for key, s := range schemas {
		if prefix == "" && key == "id" {
			continue
		}
		into[prefix+key] = property(s)
		if nested, ok := s.Elem.(*schema.Resource); ok && (s.Required || s.Optional) && key != pools {
			walk(nested.SchemaMap(), prefix+key+".", into)
		}
	}
}

func encoded(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(text.Bytes())
}

// lines prints a map with one entry a line, sorted.
func lines(out *bytes.Buffer, entries map[string]any, indent string) {
	set := map[string]bool{}
	for key := range entries {
		set[key] = true
	}
	for index, key := range keys(set) {
		if index > 0 {
			out.WriteString(",\n")
		}
		fmt.Fprintf(out, "%s%s: %s", indent, encoded(key), encoded(entries[key]))
	}
}

func main() {
	var out bytes.Buffer
	about := map[string]any{
		"source":  "https://github.com/hashicorp/terraform-provider-google-beta/tree/" + os.Args[1],
		"version": os.Args[2], "read": os.Args[3],
	}
	out.WriteString("{\n")
	lines(&out, about, " ")
	out.WriteString(",\n \"products\": {\n")
	products := map[string]any{}
	for _, p := range registry.ListProducts() {
		products[p.Name] = []string{p.BaseUrl, p.CustomEndpointField, p.CustomEndpointEnvVar}
	}
	lines(&out, products, "  ")
	out.WriteString("\n },\n \"types\": {\n")
	for index, name := range os.Args[4:] {
		resource := registry.Resource(name)
		properties := map[string]any{}
		walk(resource.SchemaMap(), "", properties)
		if index > 0 {
			out.WriteString(",\n")
		}
		fmt.Fprintf(&out, "  %s: {\n   \"importer\": %t,\n   \"properties\": {\n", encoded(name), resource.Importer != nil)
		lines(&out, properties, "    ")
		out.WriteString("\n   }\n  }")
	}
	out.WriteString("\n }\n}\n")
	_, _ = os.Stdout.Write(out.Bytes())
}
