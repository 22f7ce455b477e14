import { connect } from "./explore.js";

connect(document.body);
